import math

import pytest

from lmtrain.accounting.scaling_laws.depth_scaling import (
    depth_scaling,
)

DEPTH_12, DEPTH_24 = 110_100_912, 729_810_624


def test_depth_12_is_the_reference():
    scaling = depth_scaling(12, vocab_size=32_768)
    assert scaling.tokens_per_step == 2**19
    assert scaling.lr_factor == scaling.table_lr_factor == scaling.weight_decay_factor == 1.0


def test_depth_24_takes_twice_the_batch_and_the_known_horizon():
    scaling = depth_scaling(24, vocab_size=32_768)
    assert scaling.tokens_per_step == 2**20
    assert 8 * DEPTH_24 // scaling.tokens_per_step == 5_568
    assert 5_568 * scaling.tokens_per_step == 5_838_471_168
    assert scaling.lr_factor == pytest.approx(math.sqrt(2))
    assert scaling.table_lr_factor == pytest.approx(1 / math.sqrt(2))
    assert scaling.weight_decay_factor == pytest.approx(math.sqrt(2) * DEPTH_12 / DEPTH_24)
