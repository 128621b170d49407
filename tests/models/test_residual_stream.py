import pytest
import torch

from lmtrain.models.residual_stream import Backout, Mix, SkipStart


def test_mix_starts_at_its_initial_scalars_and_both_learn():
    mix = Mix(0.5, 0.25)
    first, second = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(mix(first, second), 0.5 * first + 0.25 * second)
    mix(first, second).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in mix.parameters())


def test_mix_keeps_the_dtype_of_the_first_stream():
    assert Mix(0.5, 0.5)(torch.ones(1, 1, 2, dtype=torch.bfloat16), torch.ones(1, 1, 2)).dtype == torch.bfloat16


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


def test_skips_start_on_a_line_over_the_layers():
    start = SkipStart(first_stream=1.15, last_stream=1.05, first_embedded=0.2, last_embedded=0.05)
    assert start.of_layer(0, 11) == pytest.approx((1.15, 0.2))
    assert start.of_layer(5, 11) == pytest.approx((1.1, 0.125))
    assert start.of_layer(10, 11) == pytest.approx((1.05, 0.05))


def test_the_only_layer_starts_as_the_first():
    assert SkipStart(first_stream=1.5, last_stream=0.5).of_layer(0, 1) == (1.5, 0.0)


def test_skips_start_as_the_identity_unless_told():
    assert SkipStart().of_layer(3, 7) == (1.0, 0.0)
