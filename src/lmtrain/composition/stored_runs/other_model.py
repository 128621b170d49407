"""Another model than that of the run in `init_from`: told by their settings and parameters alone, without torch.

Training compares each tensor's name and shape besides, before anything is allocated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.composition.nodes.source_signatures import default_settings
from lmtrain.composition.stored_runs.checkpoint_source import find_job, run_of
from lmtrain.composition.stored_runs.job import StoredJob
from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported_folder import is_imported
from lmtrain.interop.without_effect import WITHOUT_EFFECT
from lmtrain.tracking.atomic_files import read_json
from lmtrain.training.checkpointing.checkpoints import NOT_SET

KEY: Final = "init_from"
TARGET: Final = "_target_"
# Where weights fit, the number of heads settles these where they are None.
OF_THE_SHAPES: Final = frozenset({"head_width", "num_kv_heads"})
# Settings of which another value is always another shape, or a tensor elsewhere.
SIZES: Final = ("width", "num_layers", "depth", "feed_forward_width", "vocab_size", "value_embedding_layers")


def require_same_sizes(init_from: str, model: Mapping[str, Any]) -> None:
    """Refuse a model's node of another size than the one of the run in `init_from`.

    Raises:
        ConfigurationError: It is, or `init_from` names no run.
        EnvironmentProblem: It names a damaged checkpoint.
    """
    path = Path(init_from)
    if is_imported(path):
        return
    job = find_job(path, key=KEY, takes_imports=True)
    there = job.config.get("model")
    if not isinstance(there, Mapping) or there.get(TARGET) != model.get(TARGET):
        return
    sizes = {name: (there.get(name), model.get(name)) for name in SIZES}
    differing = {name: both for name, both in sizes.items() if all(isinstance(one, int | list) for one in both)}
    for name, (other, here) in differing.items():
        if other != here:
            fix = give_its_model(run_of(path), job, model)
            raise ConfigurationError(
                f"{KEY}={init_from} is another model: model.{name} is {other} there and {here} here. {fix}"
            )


def require_same_parameters(init_from: str, model: Mapping[str, Any], shape: ModelShape) -> None:
    """Refuse a model of more or fewer parameters than the run in `init_from` planned; an adapter's are left out.

    Raises:
        ConfigurationError: It has.
    """
    path = Path(init_from)
    if is_imported(path):
        return
    run = run_of(path)
    planned: Any = read_json(run / "plan.json").get("parameters", {})
    total, trained = planned.get("total"), planned.get("trained")
    here = shape.num_frozen_parameters or shape.num_parameters
    if not isinstance(total, int) or not isinstance(trained, int) or here == (there := total - trained or total):
        return
    fix = give_its_model(run, find_job(path, key=KEY), model)
    raise ConfigurationError(f"{KEY}={init_from} is another model: {there:,} parameters there and {here:,} here. {fix}")


def give_its_model(run: Path, job: StoredJob, model: Mapping[str, Any]) -> str:
    """Return the fix of another model than a run's: its differing settings."""
    line = differences(job, model)
    return f"Give the model that {run} has" + (f": {line}" if line else ".")


def differences(job: StoredJob, model: Mapping[str, Any]) -> str:
    """Return the differing settings of a run's model and of a node, as one sentence; empty without a difference."""
    here, there = _completed(model), _completed(job.config["model"])
    differing = [
        f"model.{name}={here.get(name, NOT_SET)}, there {there.get(name, NOT_SET)}"
        for name in sorted({*here, *there} - WITHOUT_EFFECT - OF_THE_SHAPES)
        if here.get(name, NOT_SET) != there.get(name, NOT_SET)
    ]
    return f"{'; '.join(differing)}." if differing else ""


def _completed(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with the defaults of its class, also of the nodes in it."""
    settings = {**default_settings(str(node.get(TARGET, ""))), **node}
    return {name: _completed(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
