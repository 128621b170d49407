"""torch's own course, plain and with momentum."""

import pytest
import torch

from lmtrain.optim.sgd import momentum, sgd
from tests.optim.reference import DECAY, require_same_course


def test_plain_equals_torch_step_by_step() -> None:
    require_same_course(
        lambda model: sgd(model, lr=0.1, weight_decay=DECAY), lambda groups: torch.optim.SGD(groups, lr=0.1)
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_equals_torch_step_by_step(nesterov: bool) -> None:
    require_same_course(
        lambda model: momentum(model, lr=0.05, momentum=0.8, nesterov=nesterov, weight_decay=DECAY),
        lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=nesterov),
    )
