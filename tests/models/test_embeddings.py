import torch

from lmtrain.models.embeddings import GatedSmear, InputEmbedding, Smear, bigram_buckets, previous
from lmtrain.models.residual_stream import RMSNorm


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


def test_a_gated_smear_starts_closed_and_opens_by_the_token_s_own_first_dimensions():
    smear = GatedSmear(2)
    x = torch.randn(1, 5, 4)
    assert torch.equal(smear(x), x)
    with torch.no_grad():
        smear.weight.fill_(0.5)
        smear.gate.copy_(torch.tensor([1.0, -2.0]))
    opened = torch.sigmoid(x[0, 3, 0] - 2 * x[0, 3, 1])
    torch.testing.assert_close(smear(x)[0, 3], x[0, 3] + 0.5 * opened * x[0, 2])


def test_the_norm_comes_before_the_smear():
    embedding = InputEmbedding(61, 8, norm=RMSNorm(8, eps=1e-6), smear=Smear(8))
    embedding.initialize_weights(torch.Generator().manual_seed(0), std=1.0)
    assert embedding.smear is not None
    with torch.no_grad():
        embedding.smear.weight.fill_(1.0)
    x = embedding(torch.tensor([[3, 4]]))[0]
    alone = embedding(torch.tensor([[4]]))[0, 0]
    torch.testing.assert_close(x[1], alone + x[0])
    torch.testing.assert_close(alone.square().mean(), torch.tensor(1.0), atol=1e-4, rtol=1e-4)


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2]])


def test_nothing_is_previous_across_the_border_of_a_document():
    x = torch.arange(1.0, 10.0).view(1, 9, 1).expand(1, 9, 2)
    assert previous(x, DOCUMENTS)[0, :, 0].tolist() == [0, 1, 2, 0, 4, 0, 6, 7, 8]


def test_a_document_s_first_pair_is_that_of_a_first_token():
    tokens = torch.randint(61, (1, 9))
    packed = bigram_buckets(tokens, DOCUMENTS, num_buckets=10_007)
    for start, end in ((0, 3), (3, 5), (5, 9)):
        alone = bigram_buckets(tokens[:, start:end], num_buckets=10_007)
        assert torch.equal(packed[:, start:end], alone)
