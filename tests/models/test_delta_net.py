"""The references are transformers' layer of Qwen3-Next and its recurrent form, token by token."""

import pytest
import torch

from lmtrain.models.delta_net import GatedDelta, GatedDeltaNet, gated_delta_rule
from tests.models.recurrent import WIDTH, require_documents_apart, require_same_layer

HEADS = GatedDelta(num_key_heads=2, num_value_heads=4, key_width=8, value_width=6)
NAMES = {
    "inputs.weight": "in_proj_qkvz.weight",
    "rates.weight": "in_proj_ba.weight",
    "convolution": "conv1d.weight",
    "decay_bias": "dt_bias",
    "decay_log": "A_log",
    "norm.weight": "norm.weight",
    "output.weight": "out_proj.weight",
}


def pair():
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_num_key_heads=HEADS.num_key_heads,
        linear_num_value_heads=HEADS.num_value_heads,
        linear_key_head_dim=HEADS.key_width,
        linear_value_head_dim=HEADS.value_width,
    )
    torch.manual_seed(0)
    theirs = Qwen3NextGatedDeltaNet(config, 0)
    ours = GatedDeltaNet(WIDTH, HEADS, norm_eps=config.rms_norm_eps)
    with torch.no_grad():
        theirs.A_log.uniform_(-3, 1)
        theirs.norm.weight.normal_(1.0)
        for name, other in NAMES.items():
            ours.get_parameter(name).copy_(theirs.get_parameter(other))
    return ours, theirs


def test_chunks_go_on_from_a_state_as_single_tokens_do():
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 100, 3, width, generator=generator) for width in (8, 8, 5))
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    decay, rate = -torch.rand(2, 100, 3, generator=generator), torch.rand(2, 100, 3, generator=generator)
    state = torch.randn(2, 3, 8, 5, generator=generator)
    expected, last = torch_recurrent_gated_delta_rule(
        q, k, v, decay, rate, initial_state=state, output_final_state=True
    )
    made, ours = gated_delta_rule([q * 8**-0.5, k, v, decay, rate], state)
    torch.testing.assert_close((made, ours), (expected, last), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [9, 64, 150])
def test_outputs_and_gradients_equal_those_of_transformers(num_tokens):
    require_same_layer(*pair(), NAMES, num_tokens)


def test_a_packed_document_is_as_alone_and_moves_others_by_nothing():
    ours, _ = pair()
    require_documents_apart(ours)
