"""Rounding by chance keeps the mean, never leaves the two neighbours, and is the same on every rank."""

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.optim.adamw_update import copy_rounded_, noise_of_step, require_bf16


def rounded(values: torch.Tensor, step: int = 0) -> torch.Tensor:
    target = torch.empty_like(values, dtype=torch.bfloat16)
    copy_rounded_(target, values, generator=noise_of_step(step, group=0, device=values.device))
    return target


def test_the_mean_is_kept_where_rounding_to_nearest_loses_it() -> None:
    value = 1 + 1 / 1024  # bf16 has 1 and 1 + 1/128
    values = torch.full((200_000,), value)
    assert values.bfloat16().float().mean() == 1
    found = rounded(values).float()
    assert set(found.tolist()) == {1.0, 1 + 1 / 128}
    assert found.mean().item() == pytest.approx(value, abs=5 * 0.0026 / 200_000**0.5)  # five standard errors


@pytest.mark.parametrize("value", [0.0, 1.5, -3.0, float("inf"), float("-inf"), 2.0**-130])
def test_what_bf16_holds_stays(value: float) -> None:
    assert rounded(torch.full((64,), value)).float().eq(value).all()


def test_nan_stays_nan_and_signs_stay() -> None:
    assert rounded(torch.full((64,), float("nan"))).isnan().all()
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded(values).sign().float(), values.sign())


def test_noise_follows_from_the_step_alone() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    first = rounded(values, step=3)
    torch.manual_seed(17)
    assert torch.equal(first, rounded(values, step=3))
    assert not torch.equal(first, rounded(values, step=4))


def test_other_formats_are_copied() -> None:
    target, source = torch.zeros(3), torch.tensor([0.1, 0.2, 0.3])
    copy_rounded_(target, source)
    assert torch.equal(target, source)


def test_rounding_of_exact_weights_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no weight is bf16; use a precision of bf16 weights"):
        require_bf16([torch.zeros(2)])
    require_bf16([torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)])
    require_bf16([torch.zeros(2, device="meta")])
