import subprocess
import sys

from tests.tiny import PROJECT, environment

TRY = """
import sys
from lmtrain.training.lean_import import UNUSED, import_lightning
import_lightning()
print(*(name for name in UNUSED if name in sys.modules))
import lightning.pytorch, scipy, torchmetrics
from lightning_utilities.core.imports import RequirementCache, package_available
mean = torchmetrics.MeanMetric()
mean.update(3.0)
print(float(mean.compute()), bool(RequirementCache("scipy")), package_available("scipy"))
"""


def test_lightning_comes_without_what_unused_metrics_want_and_leaves_nothing_changed() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", TRY], cwd=PROJECT, env=environment(), capture_output=True, text=True, check=True
    )
    assert finished.stdout.splitlines() == ["", "3.0 True True"]
