"""The weights of `init_from`: an imported folder's, or a run's checkpoint's."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from lmtrain.interop.imported import fill_from, open_weights, require_fit, require_shapes
from lmtrain.interop.imported_folder import is_imported
from lmtrain.models.base import LanguageModel
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.checkpoint_source import adapter_part, find_job, find_source
from lmtrain.run.stored_runs.other_model import KEY, differences, give_its_model
from lmtrain.storage.hashed_folder import require_whole
from lmtrain.training.checkpointing.weights import load_weights, weight_shapes
from lmtrain.training.transforms import ModelTransform, unchanged

OF_BATCH: Final = ("context_tokens", "tokens_per_step")


def find_weights(init_from: str | None, model: LanguageModel, *, node: Node | None = None) -> ModelTransform:
    """Return a function to fill a model with the weights of `init_from`, or leave it; `node` is the model's.

    Raises:
        ConfigurationError: `init_from` names no weights, or those of another model: before anything is allocated.
        EnvironmentProblem: They are damaged.
    """
    if init_from is None:
        return unchanged
    source = find_source(Path(init_from), key=KEY)
    if not isinstance(source, Path):
        fix = give_its_model(source.job.config["model"], node.values if node else {})
        require_shapes(model, _shapes(source.checkpoint.path), source=init_from, fix=fix)
        adapter = adapter_part(source.job)
        return _filled(partial(load_weights, checkpoint=source.checkpoint.path, adapter=adapter))
    require_whole(source)
    files = open_weights(source)
    require_fit(model, files)
    return _filled(partial(fill_from, files=files))


def difference_line(init_from: str | None, node: Node) -> str | None:
    """Return the model's settings unlike those of the run in `init_from`, or None.

    Weights fit by their names and shapes. Heads of another number, other rotations or another activation fit too, and
    are another model all the same: sometimes on purpose, as for a longer context.
    """
    if init_from is None or is_imported(Path(init_from)):
        return None
    differing = differences(find_job(Path(init_from), key=KEY).config["model"], node.values)
    return f"The weights of {KEY}={init_from} were trained in a model that differs: {differing}" if differing else None


def base_line(config: RunConfig) -> str | None:
    """Return the settings taken from the run in `init_from` and the differing ones; None without a run."""
    if config.init_from is None or is_imported(Path(config.init_from)):
        return None
    base = find_job(Path(config.init_from), key=KEY).config
    batch = {name: getattr(config.batch, name) for name in OF_BATCH}
    here = {"optimizer": config.optimizer.values, "batch": batch}
    there = {"optimizer": base["optimizer"], "batch": {name: base["batch"][name] for name in OF_BATCH}}
    rows = [
        (f"{group}.{name}", here[group].get(name), there[group].get(name)) for group in here for name in here[group]
    ]
    same = ", ".join(f"{key}={_shown(value)}" for key, value, other in rows if value == other and _is_told(key, value))
    differing = ", ".join(
        f"{key}={_shown(value)} (there {_shown(other)})" for key, value, other in rows if value != other
    )
    return f"as in {config.init_from}: {same}" + (f"; otherwise: {differing}" if differing else "")


def _is_told(key: str, value: Any) -> bool:
    """Tell whether a setting is a rate, a momentum or a size, rather than how they are computed."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not key.endswith(("eps", "_row_beta"))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    try:
        return weight_shapes(checkpoint)
    except Exception:
        require_whole(checkpoint)  # names the damage
        raise


def _filled(fill: Callable[[LanguageModel], object]) -> ModelTransform:
    def transform(model: LanguageModel) -> LanguageModel:
        fill(model)
        return model

    return transform
