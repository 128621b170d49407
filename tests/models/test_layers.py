import pytest
import torch

from lmtrain.models.documents import token_positions
from lmtrain.models.embeddings import GatedSmear, bigram_buckets
from lmtrain.models.head import kept_weight
from lmtrain.models.residual_stream import Backout, RMSNorm, rms_norm
from lmtrain.models.rope import RopeScaling, RotaryEmbedding, rope_frequencies, rotate


def test_a_gated_smear_starts_closed_and_opens_by_the_token_s_own_first_dimensions():
    smear = GatedSmear(2)
    x = torch.randn(1, 5, 4)
    assert torch.equal(smear(x), x)
    with torch.no_grad():
        smear.weight.fill_(0.5)
        smear.gate.copy_(torch.tensor([1.0, -2.0]))
    opened = torch.sigmoid(x[0, 3, 0] - 2 * x[0, 3, 1])
    torch.testing.assert_close(smear(x)[0, 3], x[0, 3] + 0.5 * opened * x[0, 2])


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2]])


def test_a_document_s_first_pair_is_that_of_a_first_token():
    tokens = torch.randint(61, (1, 9))
    packed = bigram_buckets(tokens, DOCUMENTS, num_buckets=10_007)
    for start, end in ((0, 3), (3, 5), (5, 9)):
        alone = bigram_buckets(tokens[:, start:end], num_buckets=10_007)
        assert torch.equal(packed[:, start:end], alone)


DOCUMENTS_DOCUMENTS = torch.tensor(
    [[0, 0, 0, 1, 1, 2, 2, 2, 2], [0] * 9, [0, 1, 2, 3, 4, 5, 6, 7, 8]], dtype=torch.int32
)


def test_positions_restart_in_every_document():
    assert token_positions(DOCUMENTS_DOCUMENTS).tolist() == [
        [0, 1, 2, 0, 1, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [0] * 9,
    ]


def test_scores_depend_on_distance_only():
    cos, sin = RotaryEmbedding(64, 16, base=10_000.0)(64)
    q, k = torch.randn(16), torch.randn(16)
    queries = rotate(q.expand(1, 64, 1, 16), cos, sin)[0, :, 0]
    keys = rotate(k.expand(1, 64, 1, 16), cos, sin)[0, :, 0]
    scores = queries @ keys.T
    # fp32 angles up to 64 radians.
    torch.testing.assert_close(scores[10, 3], scores[60, 53], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head_width", [32, 64, 128])
def test_scaled_frequencies_equal_those_of_transformers(head_width):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=head_width * 4,
        num_attention_heads=4,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    frequencies = rope_frequencies(head_width, base=500_000.0, scaling=RopeScaling())
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)


def test_rms_norm_equals_torch():
    x = torch.randn(4, 7, 32) * 3
    ours, reference = RMSNorm(32, eps=1e-5), torch.nn.RMSNorm(32, eps=1e-5)
    ours.load_state_dict({"weight": torch.randn(32)})
    reference.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), reference(x))


def test_bf16_input_is_normalised_in_fp32():
    x = torch.full((1, 4096), 200.0, dtype=torch.bfloat16)
    normalised = rms_norm(x, eps=1e-6)
    assert normalised.dtype == torch.bfloat16
    assert torch.equal(normalised, torch.ones_like(x))


def test_backout_subtracts_the_middle_by_its_scalar_and_learns():
    backout = Backout(0.2)
    x, middle = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(backout(x, middle), x - 0.2 * middle)
    backout(x, middle).square().sum().backward()
    assert backout.weight.grad is not None
    with torch.no_grad():
        backout.weight.fill_(torch.nan)
    backout.initialize_weights()
    assert backout.weight.item() == pytest.approx(0.2)


def test_the_copy_goes_forward_and_the_master_gets_the_gradient_in_its_own_format():
    master = torch.tensor([1.0, 1 + 2**-10], requires_grad=True)
    copy = torch.tensor([1.0, 1.0], dtype=torch.bfloat16)
    out = kept_weight(master, copy)
    assert out.dtype == torch.bfloat16
    assert out.tolist() == [1.0, 1.0]
    (out * torch.tensor([3.0, 5.0], dtype=torch.bfloat16)).sum().backward()
    assert master.grad is not None
    assert master.grad.dtype == torch.float32
    assert master.grad.tolist() == [3.0, 5.0]
