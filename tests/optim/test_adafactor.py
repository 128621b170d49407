"""torch's own course, with decay where it belongs."""

import torch

from lmtrain.optim.adafactor import adafactor
from tests.optim.reference import DECAY, require_same_course


def test_equals_torch_step_by_step() -> None:
    settings = {"lr": 0.02, "beta2_decay": -0.7}
    require_same_course(
        lambda model: adafactor(model, **settings, relative_eps=1e-2, clip_threshold=1.5, weight_decay=DECAY),
        lambda groups: torch.optim.Adafactor(groups, **settings, eps=(None, 1e-2), d=1.5),
    )
