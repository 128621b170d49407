"""The reference is transformers' layer of Nemotron-H, in chunks and token by token."""

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.llama import Llama
from lmtrain.models.mamba import Mamba2, Mamba2Layer, state_space_rule
from tests.models.recurrent import WIDTH, require_documents_apart, require_same_layer

HEADS = Mamba2(num_heads=6, head_width=5, state_width=8, num_groups=2, biases=True, least_step=0.3)
NAMES = {
    **{f"inputs.{kind}": f"in_proj.{kind}" for kind in ("weight", "bias")},
    **{f"output.{kind}": f"out_proj.{kind}" for kind in ("weight", "bias")},
    "convolution": "conv1d.weight",
    "convolution_bias": "conv1d.bias",
    "step_bias": "dt_bias",
    "decay_log": "A_log",
    "skip": "D",
    "norm.weight": "norm.weight",
}


def pair():
    from transformers import NemotronHConfig
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

    config = NemotronHConfig(
        hidden_size=WIDTH,
        mamba_num_heads=HEADS.num_heads,
        mamba_head_dim=HEADS.head_width,
        ssm_state_size=HEADS.state_width,
        n_groups=HEADS.num_groups,
        use_bias=True,
        time_step_min=HEADS.least_step,  # some steps are below it
        layers_block_type=["linear_attention"],
    )
    torch.manual_seed(0)
    theirs = NemotronHMamba2Mixer(config, 0)
    ours = Mamba2Layer(WIDTH, HEADS, norm_eps=config.layer_norm_epsilon)
    with torch.no_grad():
        theirs.A_log.uniform_(-3, 1)
        for parameter in (theirs.norm.weight, theirs.D):
            parameter.normal_(1.0)
        theirs.dt_bias.normal_()
        for name, other in NAMES.items():
            ours.get_parameter(name).copy_(theirs.get_parameter(other))
    return ours, theirs


@pytest.mark.parametrize("num_tokens", [1, 100])
def test_chunks_go_on_from_a_state_as_single_tokens_do(num_tokens):
    from transformers.models.nemotron_h.modeling_nemotron_h import mamba2_selective_state_update

    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, num_tokens, 2, 8, generator=generator) for _ in range(2))
    v = torch.randn(2, num_tokens, 6, 5, generator=generator)
    steps, rates = (
        torch.rand(2, num_tokens, 6, generator=generator),
        torch.linspace(-2, -0.1, 6),
    )
    state = torch.randn(2, 2, 8, 3, 5, generator=generator)
    theirs = state.permute(0, 1, 3, 4, 2).flatten(1, 2).contiguous()  # [B, H, V, K]
    expected = []
    for token in range(num_tokens):
        step, rate = steps[:, token, :, None].expand(-1, -1, 5), rates[:, None, None].expand(-1, 5, 8)
        expected.append(mamba2_selective_state_update(theirs, v[:, token], step, rate, k[:, token], q[:, token]))
    made, last = state_space_rule([q, k, v * steps.unsqueeze(-1), steps * rates], state)
    torch.testing.assert_close(made, torch.stack(expected, dim=1), atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(last.permute(0, 1, 3, 4, 2).flatten(1, 2), theirs, atol=5e-6, rtol=1e-5)


def test_steps_start_within_the_published_range():
    ours = Mamba2Layer(WIDTH, Mamba2(num_heads=512, head_width=1, state_width=2), norm_eps=1e-5)
    ours.initialize_inputs(torch.Generator().manual_seed(0), std=0.02)
    steps = torch.nn.functional.softplus(ours.step_bias)
    assert 0.00099 < steps.min() < 0.002
    assert 0.05 < steps.max() < 0.101
    assert ours.decay_log.exp().allclose(torch.arange(1.0, 513.0))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"recurrent_pattern": "RFX"}, "recurrent_pattern"),
        ({"recurrent_pattern": "RF", "single_branch_layers": False}, "recurrent_pattern"),
        ({"recurrent_layers": None, "recurrent_pattern": None}, "single_branch_layers"),
        ({"value_embedding_layers": [1]}, "value_embedding_layers"),
    ],
)
def test_contradictions_are_refused_by_name(changes, key):
    sizes = {"width": 8, "num_layers": 2, "num_heads": 2, "feed_forward_width": 8, "vocab_size": 9}
    settings = {"recurrent_layers": HEADS, "recurrent_pattern": "RF", "single_branch_layers": True}
    with pytest.raises(ConfigurationError, match=rf"model\.{key}"):
        Llama(**sizes, max_context_tokens=16, **(settings | changes))


def test_heads_are_shared_equally_by_groups():
    with pytest.raises(ConfigurationError, match=r"recurrent_layers\.num_heads.*multiple"):
        Mamba2(num_heads=3, head_width=4, state_width=4, num_groups=2)


@pytest.mark.parametrize("num_tokens", [9, 64, 150])
def test_outputs_and_gradients_equal_those_of_transformers(num_tokens):
    require_same_layer(*pair(), NAMES, num_tokens)


def test_a_packed_document_is_as_alone_and_moves_others_by_nothing():
    ours, _ = pair()
    require_documents_apart(ours)
