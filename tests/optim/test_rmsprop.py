"""torch's own course, with decay where it belongs."""

import torch

from lmtrain.optim.rmsprop import rmsprop
from tests.optim.reference import DECAY, require_same_course


def test_equals_torch_step_by_step() -> None:
    require_same_course(
        lambda model: rmsprop(model, lr=1e-3, beta2=0.95, eps=1e-7, weight_decay=DECAY),
        lambda groups: torch.optim.RMSprop(groups, lr=1e-3, alpha=0.95, eps=1e-7),
    )
