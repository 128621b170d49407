"""`lmtrain data show RUN --step N`: the text of a past step, with the loss of each document."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.report.show import show as show_page
from lmtrain.report.trained_step_page import StepDocument, by_loss, documents_table, full_lines
from lmtrain.run.compose.arguments import ALLOW_TARGET, ALLOW_TARGET_OPTION
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.stored_runs.find_run import find_job
from lmtrain.tracking.fork import read_fork
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, list_checkpoints, read_facts

if TYPE_CHECKING:
    from lmtrain.evaluation.document_losses import DocumentPiece
    from lmtrain.run.stored_runs.trained_step import TrainedStep

AROUND: Final = (8, 12)  # tokens shown before the least expected one and from it on


def data(words: list[str], *, program: str = "lmtrain data") -> int:
    """Print the documents of one step of a run, the least expected first.

    Raises:
        ConfigurationError: No run is there, or it has not trained the step.
        DataError: Its data is gone or has changed.
    """
    asked = _parser(program).parse_args(words)
    if asked.most < 1:
        raise ConfigurationError(f"--most {asked.most} is below 1; nearest valid: 1.")
    find_job(asked.run, key="RUN")  # before torch is imported
    from lmtrain.run.stored_runs.trained_step import trained_step

    step = trained_step(asked.run, asked.step, data=asked.data, allowed=asked.allow_target, left_out=asked.left_out)
    scored_by = _checkpoint(asked.run, asked.step) if asked.losses else None
    documents = by_loss(_documents(step, scored_by, asked))
    if asked.json:
        print(json.dumps(_to_json(step, scored_by, documents)))
        return EXIT_DONE
    for line in _head(step, scored_by):
        print(line)
    if asked.full:
        for document in documents[: asked.most]:
            print("\n".join(full_lines(document)))
    else:
        show_page(documents_table(documents[: asked.most]))
    if len(documents) > asked.most:
        print(f"{len(documents) - asked.most:,} more; --most {len(documents)} shows all, --full whole texts")
    return EXIT_DONE


def _checkpoint(run: Path, step: int) -> CheckpointFacts | None:
    """Return the newest checkpoint before a step, be it a fork's first, else the oldest after it; None without any."""
    kept, fork = list_checkpoints(run / "checkpoints"), read_fork(run)
    forked = read_facts(fork.kept_checkpoint) if fork and fork.kept_checkpoint else None
    earlier = [facts for facts in (*([forked] if forked else []), *kept) if facts.step < step]
    return earlier[-1] if earlier else kept[0] if kept else None


def _documents(step: "TrainedStep", scored_by: CheckpointFacts | None, asked: argparse.Namespace) -> list[StepDocument]:
    from lmtrain.evaluation.document_losses import document_pieces, token_nats

    nats = None
    if scored_by is not None:
        from lmtrain.run.stored_runs.loaded_models import model_to_run

        loaded = model_to_run(scored_by.path, device=asked.device, allowed=asked.allow_target)
        nats = token_nats(loaded.model, step.rows)
    pieces = document_pieces(step.rows, end_of_text_id=step.tokenizer.end_of_text_id, nats=nats)
    return [_document(step, piece) for piece in pieces]


def _document(step: "TrainedStep", piece: "DocumentPiece") -> StepDocument:
    batch, (before, after) = step.batch, AROUND
    rank, within = divmod(piece.row, batch.sequences_per_rank)
    worst = piece.ids[max(0, piece.worst - before) : piece.worst + after]
    return StepDocument(
        sequence=piece.row,
        rank=rank * batch.num_copies * batch.num_stages,
        micro_step=within // batch.micro_batch_sequences,
        row=int(step.numbers[piece.row]),
        first_token=piece.start,
        num_tokens=len(piece.ids),
        num_learned=piece.num_learned,
        nats_per_token=piece.mean_nats,
        worst=None if piece.nats is None else step.tokenizer.decode(worst.tolist()),
        text=step.tokenizer.decode(piece.ids.tolist()),
        source=step.sources[piece.row] if step.sources else None,
    )


def _head(step: "TrainedStep", scored_by: CheckpointFacts | None) -> list[str]:
    batch = step.batch
    loss = "" if step.loss is None else f", loss {step.loss:.3f} when it was trained"
    loss += ", left out since" if step.is_left_out else ""
    division = f"{batch.num_data_ranks} (ranks) x {batch.accumulation_micro_steps} (micro-batches)"
    each = f"{division} x {batch.micro_batch_sequences:,}"
    size = f"{format_count(batch.sequences_per_step, 'sequence')} of {batch.context_tokens:,} tokens: {each}"
    weights = "no losses" if scored_by is None else f"losses by the weights of step {scored_by.step:,}"
    if scored_by is not None and scored_by.step >= step.step:
        weights += ", which have learned from this one: no older checkpoint is kept"
    return [f"step {step.step:,} of {step.run}{loss}", f"{size}; {weights}", f"data {step.data}"]


def _to_json(step: "TrainedStep", scored_by: CheckpointFacts | None, documents: list[StepDocument]) -> dict[str, Any]:
    return {
        "run": str(step.run),
        "step": step.step,
        "loss": step.loss,
        "left_out": step.is_left_out,
        "data": step.data,
        "scored_by_step": None if scored_by is None else scored_by.step,
        "documents": [one.to_json() for one in documents],
    }


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Look at the data of a run.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    shown = actions.add_parser(
        "show", help="the text of a past step", description="Print the text of a past step, the least expected first."
    )
    add = shown.add_argument
    add("run", type=Path, help="the run's folder: runs/NAME")
    add("--step", type=int, required=True, metavar="N", help="an optimizer step, as metrics.jsonl counts them, from 1")
    add("--left-out", action="store_true", help="the batch it had before a spike took the run back")
    add("--most", type=int, default=20, metavar="N", help="documents shown (20)")
    add("--full", action="store_true", help="whole texts")
    add("--no-losses", dest="losses", action="store_false", help="load no checkpoint; in the step's order")
    add("--data", type=Path, metavar="FOLDER", help="the prepared data, where it has moved")
    add("--device", default="auto", help="of the model that scores (auto)")
    add("--json", action="store_true", help="print one JSON object, with whole texts")
    add(ALLOW_TARGET, **ALLOW_TARGET_OPTION)
    return parser
