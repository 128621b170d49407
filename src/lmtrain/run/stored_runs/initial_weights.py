"""The weights and the tokenizer of `init_from`, and the teacher: an imported folder's, or a run's checkpoint's."""

from functools import partial
from pathlib import Path

from lmtrain.accounting.batches import BatchPlan
from lmtrain.errors import ConfigurationError, wrong
from lmtrain.interop.hf_import import fill_from, open_weights, require_fit, require_shapes
from lmtrain.models.base import LanguageModel
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.find_run import START, adapter_part, find_source, run_of
from lmtrain.run.stored_runs.identity import TOKENIZER, tokenizer_fix
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.loaded_models import model_to_run
from lmtrain.storage.hashed_folder import require_whole
from lmtrain.tokenizers.base import Tokenizer, is_unused
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.training.checkpointing.weights import load_weights, weight_shapes
from lmtrain.training.transforms import ModelTransform, unchanged


def find_weights(init_from: str | None, model: LanguageModel) -> ModelTransform:
    """Return a function that fills a model with the weights of `init_from`, or leaves it.

    Raises:
        ConfigurationError: `init_from` names no weights, or those of another model: before anything is allocated.
        EnvironmentProblem: They are damaged.
    """
    if init_from is None:
        return unchanged
    source = find_source(Path(init_from), key=START)
    if isinstance(source, Path):
        require_whole(source)
        files = open_weights(source)
        require_fit(model, files)
        fill = partial(fill_from, files=files)
    else:
        checkpoint = source.checkpoint.path
        require_shapes(model, weight_shapes(checkpoint), source=init_from)
        fill = partial(load_weights, checkpoint=checkpoint, adapter=adapter_part(source.job))

    def filled(model: LanguageModel) -> LanguageModel:
        fill(model)
        return model

    return filled


def require_base_tokenizer(job: Job, tokenizer: Tokenizer) -> str | None:
    """Refuse data with other ids than those of the model in `init_from`, or return a warning if that is allowed.

    The data's tokenizer may have more entries.
    """
    init_from = job.config.init_from
    if init_from is None:
        return None
    folder = run_of(Path(init_from)) / TOKENIZER
    if (found := other_ids(folder, tokenizer)) is None:
        return None
    if TOKENIZER in job.config.run.allow_changes:
        return f"WARNING: init_from={init_from} has another tokenizer, as run.allow_changes says: {found}."
    raise ConfigurationError(
        f"init_from={init_from} has another tokenizer: {found}. Train on {tokenizer_fix(folder.parent)}; "
        f"'run.allow_changes=[{TOKENIZER}]' trains its weights on the other ids."
    )


def teacher_of(config: RunConfig, tokenizer: Tokenizer, batch: BatchPlan) -> LanguageModel | None:
    """Return the teacher on the CPU, None where there is none.

    Raises:
        ConfigurationError: It has another tokenizer than the data, or reads shorter texts.
    """
    if config.teacher is None:
        return None
    path, longest = Path(config.teacher), batch.context_tokens
    folder = run_of(path) / TOKENIZER
    if found := other_ids(folder, tokenizer):
        raise ConfigurationError(
            f"teacher={path} has another tokenizer: {found}. Train on {tokenizer_fix(folder.parent)}."
        )
    model = model_to_run(path, device="cpu", allowed=config.allowed).model
    if (most := model.max_context_tokens) < longest:
        raise wrong("batch.context_tokens", f"at most the {most} of teacher={path}", longest, f"{most}")
    return model


def other_ids(folder: Path, tokenizer: Tokenizer) -> str | None:
    """Return in words how many ids of a model's tokenizer, in a folder, stand for other text; None: none of them."""
    if not folder.is_dir() or (base := load_tokenizer(folder)).fingerprint == tokenizer.fingerprint:
        return None
    num_differing = _num_differing(base, tokenizer)
    if not num_differing:
        return None
    return f"{num_differing:,} of its {base.vocab_size:,} ids stand for other text in this run's data"


def _num_differing(base: Tokenizer, other: Tokenizer) -> int:
    """Count the ids of both that are other bytes or another special token, except unused ones."""
    there, here = ({id_: name for name, id_ in each.special_tokens.items()} for each in (base, other))
    pieces = zip(base.bytes_of_ids(), other.bytes_of_ids(), strict=False)
    return sum(
        not is_unused(there.get(id_, "")) and (old != new or there.get(id_) != here.get(id_))
        for id_, (old, new) in enumerate(pieces)
    )
