from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.parallel.fsdp import fsdp, fsdp_facts
from lmtrain.parallel.fsdp_tensor import fsdp_tensor, fsdp_tensor_facts
from lmtrain.parallel.hsdp import hsdp, hsdp_facts
from lmtrain.parallel.replicate import auto, auto_facts, ddp, ddp_facts, single, single_facts
from lmtrain.parallel.strategy import Parallelism, whole


def test_a_whole_model_is_left_as_it_is():
    model = nn.Linear(2, 2)
    assert whole(model, None) is model


def test_the_precision_is_the_trainer_s_unless_the_strategy_s_facts_say_otherwise():
    parallelism = Parallelism(name="x", strategy="auto", parallelize=whole, spread=ModelSpread())
    assert not parallelism.casts_parameters
    assert replace(parallelism, spread=ModelSpread(casts_parameters=True)).casts_parameters


@pytest.mark.parametrize(
    ("build", "facts"),
    [
        (partial(single, num_ranks=1), single_facts()),
        (partial(ddp, num_ranks=2), ddp_facts()),
        (partial(auto, num_ranks=1), auto_facts()),
        (partial(auto, num_ranks=2), auto_facts()),
        (partial(fsdp, num_ranks=2, compute_dtype=torch.bfloat16), fsdp_facts()),
        (
            partial(fsdp, num_ranks=2, compute_dtype=torch.bfloat16, reduce_every_micro_step=True),
            fsdp_facts(reduce_every_micro_step=True),
        ),
        (
            partial(fsdp, num_ranks=2, compute_dtype=torch.bfloat16, reshard_after_forward=False),
            fsdp_facts(reshard_after_forward=False),
        ),
        (partial(hsdp, num_ranks=4, compute_dtype=torch.bfloat16, shard_size=2), hsdp_facts(shard_size=2)),
        (
            partial(hsdp, num_ranks=4, compute_dtype=torch.bfloat16, shard_size=2, reduce_every_micro_step=True),
            hsdp_facts(shard_size=2, reduce_every_micro_step=True),
        ),
        (
            partial(
                fsdp_tensor, num_ranks=4, compute_dtype=torch.bfloat16, tensor_size=2, reduce_every_micro_step=True
            ),
            fsdp_tensor_facts(tensor_size=2, reduce_every_micro_step=True),
        ),
    ],
)
def test_training_and_planning_read_the_same_facts(build: partial[Parallelism], facts: ModelSpread):
    assert build().spread == facts
