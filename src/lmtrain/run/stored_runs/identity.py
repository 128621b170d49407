"""The settings shared by a checkpoint and a run resumed from it; everything else may change."""

from pathlib import Path
from typing import Any, Final

from lmtrain.data.manifest import Manifest
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.run.stored_runs.checkpoint_source import find_source
from lmtrain.run.stored_runs.job import flatten
from lmtrain.run.stored_runs.other_model import KEY
from lmtrain.storage.hashed_folder import MANIFEST, file_sha256

Identity = dict[str, str | int | float | None]
PARTS: Final = ("model", "adapter", "objective", "spikes", "weight_average")


def identity(config: RunConfig, manifest: Manifest) -> Identity:
    """Name the settings of a run and of its data."""
    of_data = {"data.fingerprint": manifest.fingerprint, "tokenizer": manifest.tokenizer_fingerprint}
    return {**identity_of_settings(config), **of_data}


def identity_of_settings(config: RunConfig) -> Identity:
    """Name the settings of a run alone."""
    kept = {node.key: node.target for node in (config.spikes, config.weight_average)}
    return {
        **flatten(config.model.without("attention").values, "model"),
        **_identity_of(config.adapter.without("start", "dropout")),
        **_identity_of(config.objective),
        "init_from": fingerprint_of(config.init_from),
        "optimizer._target_": config.optimizer.target,
        "batch.context_tokens": config.batch.context_tokens,
        "batch.tokens_per_step": config.batch.tokens_per_step,
        "seed": config.seed,
        # A checkpoint holds these only where the run had them.
        **{name: target for name, target in kept.items() if not gives_nothing(target)},
    }


def fingerprint_of(init_from: str | None) -> str | None:
    """Return the sha256 of the manifest of `init_from`: of its content, independent of its place."""
    if init_from is None:
        return None
    source = find_source(Path(init_from), key=KEY)
    folder = source if isinstance(source, Path) else source.checkpoint.path
    return file_sha256(folder / MANIFEST)


def with_settings(there: dict[str, Any], here: Identity) -> dict[str, Any]:
    """Return a checkpoint's identity with these settings, and its own data."""
    of_data = {name: value for name, value in there.items() if name not in here and _part_of(name) not in PARTS}
    return {**of_data, **here}


def _part_of(name: str) -> str:
    return name.partition(".")[0]


def _identity_of(node: Node) -> Identity:
    """Name the settings of a part that a run may be without: then it has none."""
    return {} if gives_nothing(node.target) else flatten(node.values, node.key)
