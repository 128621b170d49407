"""The preparation ahead of a config's training, as far as it is known before anything is read or downloaded."""

from dataclasses import dataclass, replace
from typing import Any

from lmtrain.accounting.quantities import format_quantity, parse_quantity
from lmtrain.accounting.training_plan.stage_rates import text_bytes_per_token
from lmtrain.accounting.training_plan.stage_work import PreparationWork
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.prepared_tokens import is_prepared
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node


@dataclass(frozen=True, kw_only=True)
class PlannedPreparation:
    """The work ahead, and lines on its size."""

    work: PreparationWork
    reasons: tuple[str, ...]


def planned_preparation(config: RunConfig, *, run_tokens: int, learns: bool) -> PlannedPreparation | None:
    """Return the preparation of a training of so many tokens, None where its data is prepared or needs none.

    It `learns` a tokenizer unless the training starts from a run.

    Raises:
        ConfigurationError: A setting of the source is wrong.
        DataError: Its files are missing.
    """
    folder = config.data.node("folder")
    node = folder.node("source") if folder else None
    if folder is None or node is None or is_prepared(config):
        return None
    source: Any = replace(node, key="source").checked(config.allowed).build()
    folder = folder.checked(config.allowed)
    density = text_bytes_per_token(_vocab_size(config.tokenizer))
    held_out = [float(folder.get(f"{split}_fraction") or 0.0) for split in ("validation", "test")]
    if sum(held_out) >= 1:
        shares = f"data.folder.validation_fraction={held_out[0]:g} and data.folder.test_fraction={held_out[1]:g}"
        raise ConfigurationError(f"{shares} leave no text to train on; nearest valid: 0.05 each.")
    tokens, reason = _train_tokens(folder, source, density=density, held_out=sum(held_out), run_tokens=run_tokens)
    sample = config.tokenizer.get("sample_bytes") if learns else None
    work = PreparationWork(
        train_tokens=tokens,
        validation_share=held_out[0],
        test_share=held_out[1],
        text_bytes_per_token=density,
        bytes_per_token=_bytes_per_token(folder, config.tokenizer, has_mask=source.has_conversations),
        learned_bytes=float(parse_quantity(sample, "tokenizer.sample_bytes")) if sample else 0.0,
    )
    download = (f"streamed: of its download, at most {format_quantity(work.text_bytes, 'bytes')}, nothing is kept",)
    lines = (reason, f"{format_quantity(work.text_bytes, 'bytes')} of text at {density:.2f} bytes a token, assumed")
    return PlannedPreparation(work=work, reasons=(*lines, *(download if source.read_once else ())))


def _train_tokens(folder: Node, source: Any, *, density: float, held_out: float, run_tokens: int) -> tuple[float, str]:
    """Return the tokens to train on and their origin: the budget of the data, the files' size, or the run's tokens."""
    if folder.get("token_budget") is not None:
        tokens = float(parse_quantity(folder.get("token_budget"), "data.folder.token_budget"))
        return tokens, f"{format_quantity(tokens)} tokens to train on: data.folder.token_budget"
    if source.text_bytes is not None:
        return source.text_bytes * (1 - held_out) / density, f"all of {source.name}, of a size known before"
    bound = f"data.folder.token_budget={run_tokens} data.folder.allow_short=true"
    return run_tokens, (
        f"all of {source.name}, of unknown size before its reading: figures for the run's "
        f"{format_quantity(run_tokens)} tokens, the most with {bound}"
    )


def _vocab_size(tokenizer: Node) -> int | None:
    found = tokenizer.get("vocab_size")
    return None if found is None else int(parse_quantity(found, "tokenizer.vocab_size"))


def _bytes_per_token(folder: Node, tokenizer: Node, *, has_mask: bool) -> int:
    """Return the bytes of an id and its loss mark; ids of a vocabulary of unknown size count as wide."""
    from lmtrain.data.layout import DTYPES, MASK_DTYPE, narrowest_dtype  # numpy: only where data is to be prepared

    vocab_size = _vocab_size(tokenizer)
    fitting = [*DTYPES][-1] if vocab_size is None else narrowest_dtype(vocab_size)
    return DTYPES.get(folder.get("token_dtype"), DTYPES[fitting]).itemsize + (MASK_DTYPE.itemsize if has_mask else 0)
