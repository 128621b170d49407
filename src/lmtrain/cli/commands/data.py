"""`lmtrain data show RUN --step N`: the text of a past step, document by document, with the loss of each."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.commands.model_flags import add_json
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.report.show import show
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.arguments import ALLOW_TARGET, ALLOW_TARGET_OPTION
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.stored_runs.find_run import find_job
from lmtrain.tracking.fork import read_fork
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, list_checkpoints, read_facts

if TYPE_CHECKING:
    from lmtrain.evaluation.document_losses import DocumentPiece
    from lmtrain.run.stored_runs.trained_step import TrainedStep

Document = dict[str, Any]  # as --json prints it
AROUND: Final = (8, 12)  # tokens shown before the least expected one, and from it on


def data(words: list[str], *, program: str = "lmtrain data") -> int:
    """Print the documents of one step of a run, the least expected first."""
    asked = _parser(program).parse_args(words)
    if asked.most < 1:
        raise ConfigurationError(f"--most: must be 1 or more, got {asked.most}.")
    find_job(asked.run, key="RUN")  # before torch is imported
    from lmtrain.run.stored_runs.trained_step import trained_step

    step = trained_step(asked.run, asked.step, data=asked.data, allowed=asked.allow_target)
    scored_by = _checkpoint(asked.run, asked.step)
    documents = by_loss(_documents(step, scored_by, asked))
    if asked.json:
        print_json(_to_json(step, scored_by, documents))
        return EXIT_DONE
    print("\n".join(_head(step, scored_by)))
    show(documents_table(documents[: asked.most]))
    if len(documents) > asked.most:
        print(f"{len(documents) - asked.most:,} more; --most {len(documents)} shows all, --json whole texts")
    return EXIT_DONE


def _checkpoint(run: Path, step: int) -> CheckpointFacts | None:
    """Return the newest checkpoint before a step, of the parent run too, else the oldest after it; None without any."""
    kept, fork = list_checkpoints(run / "checkpoints"), read_fork(run)
    forked = read_facts(fork.kept_checkpoint) if fork and fork.kept_checkpoint else None
    earlier = [facts for facts in (*([forked] if forked else []), *kept) if facts.step < step]
    return earlier[-1] if earlier else kept[0] if kept else None


def _documents(step: "TrainedStep", scored_by: CheckpointFacts | None, asked: argparse.Namespace) -> list[Document]:
    from lmtrain.evaluation.document_losses import document_pieces, token_nats

    nats = None
    if scored_by is not None:
        from lmtrain.run.stored_runs.loaded_models import model_to_run

        loaded = model_to_run(scored_by.path, device=asked.device, allowed=asked.allow_target)
        nats = token_nats(loaded.model, step.rows)
    pieces = document_pieces(step.rows, end_of_text_id=step.tokenizer.end_of_text_id, nats=nats)
    return [_document(step, piece) for piece in pieces]


def _document(step: "TrainedStep", piece: "DocumentPiece") -> Document:
    """Return a document, or a piece of one: its place, its loss in nats per token, and its text.

    `worst` is the text around its least expected token, None if it was not scored; `source` is of a mixture.
    """
    batch, (before, after) = step.batch, AROUND
    rank, within = divmod(piece.row, batch.sequences_per_rank)
    worst = piece.ids[max(0, piece.worst - before) : piece.worst + after]
    return {
        "sequence": piece.row,
        "rank": rank * batch.num_copies,
        "micro_step": within // batch.sequences_per_micro_step,
        "row": int(step.numbers[piece.row]),
        "first_token": piece.start,
        "num_tokens": len(piece.ids),
        "num_learned": piece.num_learned,
        "nats_per_token": piece.mean_nats,
        "worst": None if piece.nats is None else step.tokenizer.decode(worst.tolist()),
        "text": step.tokenizer.decode(piece.ids.tolist()),
        "source": step.sources[piece.row] if step.sources else None,
    }


def by_loss(documents: Sequence[Document]) -> list[Document]:
    """Sort the documents, NaN and the highest loss first; unscored ones stay in their order, last."""

    def rank(one: Document) -> float:
        loss = one["nats_per_token"]
        return math.inf if loss is None else -math.inf if math.isnan(loss) else -loss

    return sorted(documents, key=rank)


def documents_table(documents: Sequence[Document]) -> Table:
    """Return a table with a line per document."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    is_mixed = any(one["source"] is not None for one in documents)
    if is_mixed:
        table.add_column("source", no_wrap=True)
    for name in ("seq.", "rank", "micro", "row", "tokens", "nats/token"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text, around its least expected token", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in documents:
        place = [f"{one[name]:,}" for name in ("sequence", "rank", "micro_step", "row", "num_tokens")]
        loss = "-" if one["nats_per_token"] is None else f"{one['nats_per_token']:.3f}"
        source = [visible(one["source"] or "")] if is_mixed else []
        text = one["text"] if one["worst"] is None else one["worst"]
        line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
        table.add_row(*source, *place, loss, line)
    return table


def _head(step: "TrainedStep", scored_by: CheckpointFacts | None) -> list[str]:
    batch = step.batch
    loss = "" if step.loss is None else f", loss {step.loss:.3f} when it was trained"
    division = f"{batch.num_data_ranks} (ranks) x {batch.accumulation_micro_steps} (micro-batches)"
    each = f"{division} x {batch.sequences_per_micro_step:,}"
    size = f"{format_count(batch.sequences_per_step, 'sequence')} of {batch.context_tokens:,} tokens: {each}"
    weights = "no losses" if scored_by is None else f"losses by the weights of step {scored_by.step:,}"
    if scored_by is not None and scored_by.step >= step.step:
        weights += ", which have learned from this one: no older checkpoint is kept"
    return [f"step {step.step:,} of {step.run}{loss}", f"{size}; {weights}", f"data {step.data}"]


def _to_json(step: "TrainedStep", scored_by: CheckpointFacts | None, documents: list[Document]) -> dict[str, Any]:
    return {
        "run": str(step.run),
        "step": step.step,
        "loss": step.loss,
        "data": step.data,
        "scored_by_step": None if scored_by is None else scored_by.step,
        "documents": documents,
    }


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Look at the data of a run.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    about = "Print the text of a past step, the least expected first."
    shown = actions.add_parser("show", help="the text of a past step", description=about)
    add = shown.add_argument
    add("run", type=Path, help="the run's folder: runs/NAME")
    add("--step", type=int, required=True, metavar="N", help="an optimizer step, as metrics.jsonl counts them, from 1")
    add("--most", type=int, default=20, metavar="N", help="documents shown (20)")
    add("--data", type=Path, metavar="FOLDER", help="the prepared data, if it has moved")
    add("--device", default="auto", help="of the model that scores (auto)")
    add_json(shown)
    add(ALLOW_TARGET, **ALLOW_TARGET_OPTION)
    return parser
