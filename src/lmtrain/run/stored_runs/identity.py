"""The settings that a resumed run shares with its checkpoint, and which of their changes `run.allow_changes` may allow.

Other settings may change freely. No name allows a change that the checkpoint's tensors cannot be read into, or that
changes the units in which a run counts its tokens.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.data.manifest import Manifest
from lmtrain.run.compose.start_options import tokenizer_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.run.stored_runs.find_run import START, find_source
from lmtrain.run.stored_runs.job import Job, differing, flatten
from lmtrain.storage.hashed_folder import MANIFEST, file_sha256
from lmtrain.tracking.run_folder import shown_path
from lmtrain.training.checkpointing.checkpoints import OPTIMIZER, CheckpointFacts, require_same_identity

Identity = dict[str, str | int | float | None]
TOKENIZER: Final = "tokenizer"  # the group, a checkpoint's fact, and a run's folder of it
TENSOR_SETTINGS: Final = ("model.", "adapter.")
COUNTED_IN: Final = ("batch.context_tokens", "batch.tokens_per_step")


def identity(config: RunConfig, manifest: Manifest) -> Identity:
    """Return the settings of a run and the fingerprints of its data."""
    of_data = {"data.fingerprint": manifest.fingerprint, TOKENIZER: manifest.tokenizer_fingerprint}
    return {**identity_of_settings(config), **of_data}


def identity_of_settings(config: RunConfig) -> Identity:
    """Return the settings of a run without its data."""
    kept = {node.key: node.target for node in (config.spikes, config.weight_average)}
    return {
        **flatten(config.model.without("attention").values, "model"),
        **_identity_of(config.adapter.without("start", "dropout")),
        **_identity_of(config.objective),
        **_identity_of(config.module),
        "init_from": fingerprint_of(config.init_from),
        **({"teacher": fingerprint_of(config.teacher, key="teacher")} if config.teacher else {}),
        "optimizer._target_": config.optimizer.target,
        "batch.context_tokens": config.batch.context_tokens,
        "batch.tokens_per_step": config.batch.tokens_per_step,
        "seed": config.seed,
        # A checkpoint holds these only if the run had them.
        **{name: target for name, target in kept.items() if not gives_nothing(target)},
    }


def _identity_of(node: Node) -> Identity:
    """Return the settings of an optional part; none for a run without it."""
    return {} if gives_nothing(node.target) else flatten(node.values, node.key)


def fingerprint_of(path: str | None, *, key: str = START) -> str | None:
    """Return the sha256 of the manifest of a model, named by `key`: of its content, independent of its place."""
    if path is None:
        return None
    source = find_source(Path(path), key=key)
    folder = source if isinstance(source, Path) else source.checkpoint.path
    return file_sha256(folder / MANIFEST)


def allowed_changes(
    here: dict[str, Any], job: Job, checkpoint: CheckpointFacts, *, reads_shards_of: str | None = None
) -> Mapping[str, str]:
    """Return the allowed changes from a checkpoint to an identity, each as OLD -> NEW.

    `reads_shards_of` is the strategy that reads one optimizer's shards; None: the optimizer may differ.
    """
    changed = differing(checkpoint.identity, here)
    run = checkpoint.path.parents[1]
    counted = f"a run counts its tokens and its place in the data in it; a new run takes the weights with {START}={run}"
    fixed = {name: counted for name in changed if name in COUNTED_IN}
    if TOKENIZER in changed:
        fixed[TOKENIZER] = f"the checkpoint's weights know only the ids of {tokenizer_fix(run)}"
    if OPTIMIZER in changed and reads_shards_of is not None:
        fixed[OPTIMIZER] = f"strategy={reads_shards_of} reads only one optimizer's shards; a run without shards may"
    of_tensors = [name for name in changed if name.startswith(TENSOR_SETTINGS)]
    if of_tensors and (tensor := _other_tensor(job.config, checkpoint)):
        fixed[of_tensors[0]] = f"the checkpoint's tensors differ: {tensor}"
    return require_same_identity(checkpoint, here, allowed=job.config.run.allow_changes, fixed=fixed)


def tokenizer_fix(run: Path) -> str:
    """Return what to train on for the ids of a run or an import, with the overrides of its tokenizer."""
    words = shlex.join(tokenizer_words(shown_path(run) / TOKENIZER))
    return f"its own tokenizer: text prepared with {words}" if words else "its own tokenizer"


def _other_tensor(config: RunConfig, checkpoint: CheckpointFacts) -> str | None:
    """Return the first tensor whose shape differs from the checkpoint's; None if all fit."""
    from lmtrain.run.builders.model import planned_model  # torch
    from lmtrain.training.checkpointing.weights import tensor_shapes

    here = {name: tuple(tensor.shape) for name, tensor in planned_model(config).state_dict().items()}
    for name, (old, new) in differing(tensor_shapes(checkpoint.path), here).items():
        return f"{name} is {new and list(new)}, there {old and list(old)}"
    return None
