import torch

from lmtrain.models.embeddings import BigramEmbedding, EmbeddingSkip, Smear, bigram_buckets, previous_along


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


def test_bigram_embedding_starts_by_adding_nothing():
    embedding = BigramEmbedding(50, 8)
    embedding.initialize_weights()
    assert torch.equal(embedding(torch.randint(1000, (2, 9))), torch.zeros(2, 9, 8))


def test_previous_shifts_by_one_and_starts_with_zeros():
    x = torch.arange(1.0, 7.0).view(1, 3, 2)
    assert previous_along(x, 1).tolist() == [[[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]]


def test_smear_adds_the_weighted_previous_vector():
    smear = Smear(2, dim=1)
    x = torch.randn(1, 5, 2)
    assert torch.equal(smear(x), x)
    with torch.no_grad():
        smear.weight.copy_(torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(smear(x)[0, 3], x[0, 3] + x[0, 2] * torch.tensor([0.5, 2.0]))


def test_embedding_skip_starts_as_the_identity_and_can_learn():
    skip = EmbeddingSkip()
    x, embedded = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    assert torch.equal(skip(x, embedded), x)
    skip(x, embedded).square().sum().backward()
    assert skip.embedding_weight.grad is not None
    assert skip.embedding_weight.grad.abs() > 0
