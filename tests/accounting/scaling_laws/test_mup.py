from dataclasses import asdict

import pytest

from lmtrain.accounting.scaling_laws.mup import Update, width_transfer


@pytest.mark.parametrize("update", ["coordinates", "spectrum"])
def test_at_the_base_every_factor_is_one(update: Update) -> None:
    factors = width_transfer(768, base_width=768, head_width=64, base_head_width=64, update=update)
    assert set(asdict(factors).values()) == {1.0}


def test_sixteen_times_the_width_under_adam() -> None:
    factors = width_transfer(2048, base_width=128, head_width=64, base_head_width=64, update="coordinates")
    assert (factors.matrix_lr, factors.head_lr, factors.weight_decay) == (1 / 16, 1 / 16, 16.0)
    assert (factors.matrix_init_std, factors.head_init_std, factors.attention) == (1 / 4, 1 / 16, 1.0)


def test_an_orthogonal_update_keeps_its_rate_and_decay() -> None:
    factors = width_transfer(2048, base_width=128, head_width=64, base_head_width=64, update="spectrum")
    assert (factors.matrix_lr, factors.weight_decay) == (1.0, 1.0)
    assert (factors.head_lr, factors.head_init_std, factors.matrix_init_std) == (1 / 16, 1 / 16, 1 / 4)


def test_scores_of_wider_heads_are_divided_by_their_width_rather_than_its_root() -> None:
    factors = width_transfer(512, base_width=128, head_width=256, base_head_width=64, update="coordinates")
    root_and_factor = 256**-0.5 * factors.attention
    assert root_and_factor == pytest.approx(64**-0.5 * 64 / 256), "as at the base, but by 1 / K from there"
