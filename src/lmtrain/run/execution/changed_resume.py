"""Hold a run against the checkpoint it goes on from: a change that would pass without a sign is allowed by name.

No name allows what a checkpoint cannot be read into, or what a run counts in.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.run.builders.adapters import planned_model
from lmtrain.run.compose.paths import key_of
from lmtrain.run.execution.build import Run
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.checkpoint_source import find_job
from lmtrain.run.stored_runs.job import Job, load_job
from lmtrain.run.stored_runs.own_tokenizer import TOKENIZER, keeping, with_tokenizer
from lmtrain.training.checkpointing.checkpoints import (
    NOT_SET,
    OPTIMIZER,
    CheckpointFacts,
    require_same_identity,
    require_same_left_out,
)
from lmtrain.training.checkpointing.weights import tensor_shapes
from lmtrain.training.module import STATEFUL

OF_TENSORS: Final = ("model.", "adapter.")  # settings of the checkpoint's tensors, or of what is done with them
FINGERPRINT: Final = "data.fingerprint"
OF_DATA: Final = ("source", "data", "cleaning", "deduplicate", TOKENIZER)
CHOOSING: Final = ("task", "experiment", "init_from", "scaling")  # they choose options of other groups
OF_TOKENIZER: Final = {TOKENIZER, "model.vocab_size"}
COUNTED_IN: Final = ("batch.context_tokens", "batch.tokens_per_step")


def require_same_run(run: Run, job: Job, checkpoint: CheckpointFacts) -> None:
    """Refuse a checkpoint of another run; warn of changes allowed by name, and leave the state of such parts behind.

    Raises:
        ConfigurationError: A change is not allowed, or cannot be.
    """
    identity, name = run.context.identity, run.parallelism.name
    checkpoint = with_tokenizer(checkpoint, otherwise=identity[TOKENIZER])
    reads_shards = not run.trainer.strategy.lightning_restore_optimizer
    _accept(run, allowed_changes(identity, job, checkpoint, reads_shards_of=name if reads_shards else None))
    require_same_left_out(checkpoint, run.context.plan.batch.left_out_before(checkpoint.step))


def allowed_changes(
    here: dict[str, Any], job: Job, checkpoint: CheckpointFacts, *, reads_shards_of: str | None = None
) -> Mapping[str, str]:
    """Return the allowed changes from a checkpoint to an identity, each as OLD -> NEW.

    `reads_shards_of` is the strategy that reads one optimizer's shards, None: optimizers may differ.

    Raises:
        ConfigurationError: A change is not allowed, or cannot be.
    """
    fixed = _fixed(here, job.config, checkpoint, reads_shards_of=reads_shards_of)
    words = _forgotten(here, job.overrides, checkpoint)
    keep = ""
    if TOKENIZER in fixed and fixed.keys() <= OF_TOKENIZER:
        keep = keeping(checkpoint.path.parents[1], job.overrides, job.config.data)
    allowed = job.config.run.allow_changes
    return require_same_identity(checkpoint, here, allowed=allowed, fixed=fixed, words=words, keep=keep)


def _forgotten(identity: Mapping[str, Any], typed: Sequence[str], checkpoint: CheckpointFacts) -> list[str]:
    """Return the words of the checkpoint's run that are missing here and choose what differs."""
    differing = {
        name for name in {*identity, *checkpoint.identity} if identity.get(name) != checkpoint.identity.get(name)
    }
    groups = {name.partition(".")[0] for name in differing}
    of_data = OF_DATA if differing & {FINGERPRINT, "model.vocab_size"} else ()
    try:
        run = checkpoint.path.parents[1]
        attempt = run / "attempts" / f"{checkpoint.attempt}" / "job.json"
        words = (load_job(attempt) if attempt.is_file() else find_job(run, key="resume")).overrides
    except LMTRAIN_ERRORS:
        return []
    chosen = {*groups, *of_data, *CHOOSING} if differing else set[str]()
    return [word for word in words if word not in typed and key_of(word).partition(".")[0] in chosen]


def _fixed(
    here: Mapping[str, Any], config: RunConfig, checkpoint: CheckpointFacts, *, reads_shards_of: str | None
) -> dict[str, str]:
    """Return the differing settings that no name allows, each with its reason."""
    there = checkpoint.identity
    differing = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    counted = "a run's tokens and its place in the data are counted in it; a new run takes the weights with init_from"
    fixed = {name: f"{counted}={checkpoint.path.parents[1]}" for name in differing if name in COUNTED_IN}
    if TOKENIZER in differing:
        fixed[TOKENIZER] = "the checkpoint's weights know the ids of its own alone"
    if OPTIMIZER in differing and reads_shards_of is not None:
        fixed[OPTIMIZER] = f"strategy={reads_shards_of} reads one optimizer's shards alone; without shards it can"
    of_tensors = [name for name in differing if name.startswith(OF_TENSORS)]
    if of_tensors and (tensor := _other_tensor(config, checkpoint)):
        fixed |= dict.fromkeys(of_tensors, f"the checkpoint's tensors are others: {tensor}")
    return fixed


def _other_tensor(config: RunConfig, checkpoint: CheckpointFacts) -> str | None:
    """Return the first tensor of another shape than the checkpoint's, in words; None where all fit."""
    here = {name: tuple(tensor.shape) for name, tensor in planned_model(config).state_dict().items()}
    there = tensor_shapes(checkpoint.path)
    name = next((name for name in {**here, **there} if here.get(name) != there.get(name)), None)
    return None if name is None else f"{name} is {_told(here.get(name))}, there {_told(there.get(name))}"


def _told(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"{list(shape)}"


def _accept(run: Run, changes: Mapping[str, str]) -> None:
    """Warn of allowed changes, and leave the state of another optimizer, spike filter, average or objective behind."""
    run.module.begins_anew = STATEFUL & {name.partition(".")[0] for name in changes}
    for name, change in changes.items() if run.context.is_main_process else ():
        ends = change.endswith(f" -> {NOT_SET}")
        also = f"; its state {'is left behind' if ends else 'begins anew'}"
        has_state = name.partition(".")[0] in STATEFUL
        print(f"WARNING: {name} {change}, as run.allow_changes says{also if has_state else ''}.", file=sys.stderr)
