import torch

from lmtrain.models.embeddings import InputEmbedding, Mix, Smear, bigram_buckets, previous


def test_bucket_depends_on_the_pair_and_on_nothing_else():
    tokens = torch.tensor([[5, 7, 9, 5, 7], [1, 5, 7, 7, 5]])
    buckets = bigram_buckets(tokens, num_buckets=10_007)
    assert buckets[0, 1] == buckets[0, 4] == buckets[1, 2]  # (5, 7), wherever it stands
    assert buckets[1, 4] != buckets[0, 1]  # (7, 5) is another pair


def test_first_token_is_a_pair_of_its_own():
    tokens = torch.tensor([[3, 3], [0, 0]])
    buckets = bigram_buckets(tokens, num_buckets=10_007)
    assert buckets[0, 0] != buckets[0, 1]
    assert buckets[1, 0] != buckets[1, 1]


def test_buckets_are_in_range_and_spread_evenly():
    tokens = torch.randint(128_256, (64, 1024), generator=torch.Generator().manual_seed(0))
    counts = bigram_buckets(tokens, num_buckets=64).flatten().bincount(minlength=64)
    assert counts.numel() == 64
    # 65,536 pairs in 64 buckets: 1,024 each, give or take five standard deviations of 32.
    assert counts.min() > 1024 - 160
    assert counts.max() < 1024 + 160


def test_neighbouring_pairs_rarely_share_a_bucket():
    first, second = torch.meshgrid(torch.arange(100), torch.arange(100), indexing="ij")
    pairs = torch.stack((first.flatten(), second.flatten()), dim=1)
    buckets = bigram_buckets(pairs, num_buckets=16_384)[:, 1]
    # 10,000 balls in 16,384 bins fill 7,485 of them on average.
    assert buckets.unique().numel() > 7_200


def test_pairs_start_by_adding_nothing_and_can_learn():
    embedding = InputEmbedding(61, 8, num_bigram_buckets=50)
    embedding.initialize_weights(torch.Generator().manual_seed(0), std=1.0)
    tokens = torch.randint(61, (2, 9))
    assert torch.equal(embedding(tokens), embedding.token(tokens))
    embedding(tokens).sum().backward()
    assert embedding.bigram is not None
    assert embedding.bigram.weight.grad is not None
    assert embedding.bigram.weight.grad.any()


def test_embeddings_have_the_asked_spread():
    embedding = InputEmbedding(1000, 100)
    embedding.initialize_weights(torch.Generator().manual_seed(0), std=0.5)
    assert abs(embedding.token.weight.std().item() - 0.5) < 5e-3


def test_previous_shifts_by_one_and_starts_with_zeros():
    x = torch.arange(1.0, 7.0).view(1, 3, 2)
    assert previous(x).tolist() == [[[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]]


def test_smear_adds_the_weighted_previous_vector():
    smear = Smear(2)
    x = torch.randn(1, 5, 2)
    assert torch.equal(smear(x), x)
    with torch.no_grad():
        smear.weight.copy_(torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(smear(x)[0, 3], x[0, 3] + x[0, 2] * torch.tensor([0.5, 2.0]))


def test_mix_starts_at_its_initial_scalars_and_both_learn():
    mix = Mix(0.5, 0.25)
    first, second = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(mix(first, second), 0.5 * first + 0.25 * second)
    mix(first, second).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in mix.parameters())


def test_mix_keeps_the_dtype_of_the_first_stream():
    assert Mix(0.5, 0.5)(torch.ones(1, 1, 2, dtype=torch.bfloat16), torch.ones(1, 1, 2)).dtype == torch.bfloat16
