from dataclasses import FrozenInstanceError

import pytest
from torch import nn

from lmtrain.parallel.strategy import Parallelism, whole


def test_a_whole_model_is_left_as_it_is():
    model = nn.Linear(2, 2)
    assert whole(model, None) is model


def test_the_precision_is_the_trainer_s_unless_the_strategy_says_otherwise():
    parallelism = Parallelism(name="x", strategy="auto", parallelize=whole)
    assert not parallelism.casts_parameters
    with pytest.raises(FrozenInstanceError):
        parallelism.casts_parameters = True
