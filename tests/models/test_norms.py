import torch

from lmtrain.models.residual_stream import RMSNorm, rms_norm


def test_rms_norm_equals_torch():
    x = torch.randn(4, 7, 32) * 3
    ours, reference = RMSNorm(32, eps=1e-5), torch.nn.RMSNorm(32, eps=1e-5)
    ours.load_state_dict({"weight": torch.randn(32)})
    reference.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), reference(x))


def test_norm_ignores_the_scale_of_its_input():
    x = torch.randn(4, 32)
    torch.testing.assert_close(rms_norm(x * 1000, eps=1e-6), rms_norm(x, eps=1e-6), atol=1e-4, rtol=1e-4)


def test_bf16_input_is_normalised_in_fp32():
    x = torch.full((1, 4096), 200.0, dtype=torch.bfloat16)
    normalised = rms_norm(x, eps=1e-6)
    assert normalised.dtype == torch.bfloat16
    assert torch.equal(normalised, torch.ones_like(x))


def test_unlearned_norm_has_no_parameters_and_a_weight_of_one():
    x = torch.randn(4, 32)
    fixed = RMSNorm(32, eps=1e-5, learned=False)
    assert list(fixed.parameters()) == []
    assert torch.equal(fixed(x), RMSNorm(32, eps=1e-5)(x))
