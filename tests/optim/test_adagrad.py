"""torch's own course, with decay where it belongs."""

import torch

from lmtrain.optim.adagrad import adagrad
from tests.optim.reference import DECAY, require_same_course


def test_equals_torch_step_by_step() -> None:
    require_same_course(
        lambda model: adagrad(model, lr=0.02, eps=1e-9, initial_accumulator=0.1, weight_decay=DECAY),
        lambda groups: torch.optim.Adagrad(groups, lr=0.02, eps=1e-9, initial_accumulator_value=0.1, foreach=False),
        atol=1e-6,  # torch's fused step, which it is here, rounds otherwise than its loop
    )
