"""The course of lion_pytorch, with decay where it belongs."""

from lion_pytorch import Lion

from lmtrain.optim.lion import lion
from tests.optim.reference import DECAY, require_same_course


def test_equals_the_package_step_by_step() -> None:
    require_same_course(
        lambda model: lion(model, lr=1e-3, beta1=0.9, beta2=0.98, weight_decay=DECAY),
        lambda groups: Lion(groups, lr=1e-3, betas=(0.9, 0.98)),
    )
