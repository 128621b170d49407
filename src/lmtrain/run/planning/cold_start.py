"""The seconds before a run's first steps, compilation above all, by earlier starts with the same `run.cache`.

torch keeps what it compiled there, and finds it by the graph, the shapes, its version and the device: jobs and nodes
with one such folder compile once. Loads no torch.
"""

import contextlib
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.errors import EnvironmentProblem
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.run.planning.known_models import key_of
from lmtrain.run.planning.measurements import kind_here, measurements_of
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.atomic_files import read_json, write_json


class Start(NamedTuple):
    """Seconds of a first start, and of the latest later one (None: there was none).

    `is_same`: of the same graphs and shapes; else the median first start of others on such a device.
    """

    first_seconds: float
    later_seconds: float | None
    is_same: bool


def expected_start(config: RunConfig, setting: Setting, batch: BatchPlan) -> Start | None:
    """Return what earlier starts took; None where nothing was started on such a device."""
    file = _file(config, setting, batch)
    if (same := _seconds(file, "first")) is not None:
        return Start(same, _seconds(file, "later"), is_same=True)
    others = [found for other in file.parent.glob("*.json") if (found := _seconds(other, "first")) is not None]
    return Start(median(others), None, is_same=False) if others else None


def remember_start(config: RunConfig, batch: BatchPlan, *, setup_seconds: float, compile_seconds: float) -> None:
    """Keep what a start took; a full disk loses it, and nothing else."""
    file = _file(config, planned_setting(config), batch)
    with contextlib.suppress(EnvironmentProblem, OSError):
        known = read_json(file) or {"first": compile_seconds}
        later = {"later": compile_seconds} if file.exists() else {}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, known | later | {"setup": setup_seconds or known.get("setup", 0.0)})


def _seconds(file: Path, start: str) -> float | None:
    """Return the seconds of set-up and compilation in a file."""
    content = read_json(file)
    compilation, setup = content.get(start), content.get("setup")
    return compilation + setup if isinstance(compilation, float) and isinstance(setup, float) else None


def _file(config: RunConfig, setting: Setting, batch: BatchPlan) -> Path:
    """Return the file for the config's graphs, in the folder for its device, torch and compilation."""
    measured = measurements_of(config)
    gpu = measured.find("gpu") if kind_here(config, measured) == "gpu" else None
    device = config.cluster.device or (gpu.name if gpu else cpu_name())
    place = _hash(device, _torch_release(), config.compile.canonical(), setting.is_compiled)
    shapes = (batch.sequences_per_micro_step, batch.context_tokens, config.trainer.devices)
    graphs = _hash(key_of(config, setting), config.strategy.canonical(), config.optimizer.target, shapes)
    return Path(config.run.cache) / "starts" / place / f"{graphs}.json"


def _torch_release() -> str:
    """Return the name of torch's folder of facts, which has its version."""
    torch = find_spec("torch")
    packages = Path(torch.origin).parents[1] if torch and torch.origin else Path()
    return next((found.name for found in packages.glob("torch-*.dist-info")), "")


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
