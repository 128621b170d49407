"""An evaluation's scores as lines of 80 columns, each with its noise."""

from lmtrain.evaluation.answers import AnswerScore
from lmtrain.evaluation.bits_per_byte import BitsPerByte
from lmtrain.evaluation.chat_tasks import CORE_LABELS
from lmtrain.evaluation.core import SPREAD_OVER_SEEDS, CoreScore, TaskScore
from lmtrain.evaluation.harness_tasks import HarnessScore
from lmtrain.tracking.sweep_file import ASSISTANT

NUM_CHAT_TASKS = len(CORE_LABELS)


def bits_line(name: str, total: BitsPerByte, standard_error: float | None, *, of_turns: int | None = None) -> str:
    """Return the name, bits per byte with the standard error, and nats a token, each on its line.

    `of_turns` are the bytes of all turns where only the assistant's words were scored.
    """
    whose = "" if of_turns is None else f"\n  {ASSISTANT}, {total.num_bytes:,} of {of_turns:,} bytes"
    error = f" +- {standard_error:.4f}" if standard_error is not None else ""
    return (
        f"{name}\n  {total.bits_per_byte:.4f}{error} bits per byte   {total.nats_per_token:.4f} nats a token   "
        f"{total.num_bytes:,} bytes{whose}"
    )


def answers_head() -> str:
    """Return the names of the columns of `answers_line`."""
    return f"  {'':<20} {'right':>15}   {'commonest answer':>16}   {'ended':>6}"


def answers_line(score: AnswerScore) -> str:
    """Return the share of right answers with its standard error, beside a guess, and the share of ended answers."""
    right = f"{score.accuracy:.1%} +- {score.standard_error:.1%}"
    return f"  {score.kind:<20} {right:>15}   {score.guess:>16.1%}   {score.ended:>6.1%} of {score.num_items:,}"


def task_line(task: TaskScore) -> str:
    """Return a task's centred accuracy with its standard error, and the accuracy itself."""
    return (
        f"  {task.label:<32} {task.centred:7.4f} +- {task.standard_error:.4f}   accuracy {task.accuracy:6.1%} "
        f"of {task.num_items:,}"
    )


def core_line(score: CoreScore) -> str:
    """Return the mean over tasks with its standard error."""
    return f"  {'CORE: the mean of these ' + str(len(score.tasks)):<32} {score.core:7.4f} +- {score.standard_error:.4f}"


def core_notes(score: CoreScore) -> list[str]:
    """Return the meaning of the numbers."""
    return [
        "  0 is guessing, 1 no error; +- is the standard error of so many items. Training",
        f"  again with another seed moves CORE by {SPREAD_OVER_SEEDS} (one recipe, 20 seeds).",
        *([] if len(score.tasks) == 22 else [f"  CORE itself has 22 tasks; these are {len(score.tasks)}."]),
    ]


def chat_lines(score: CoreScore) -> list[str]:
    """Return the mean over ChatCORE's tasks with its standard error, and the meaning of the numbers."""
    whole = [] if len(score.tasks) == NUM_CHAT_TASKS else [f"  ChatCORE has {NUM_CHAT_TASKS} tasks."]
    name = f"ChatCORE: the mean of these {len(score.tasks)}"
    return [
        f"  {name:<32} {score.core:7.4f} +- {score.standard_error:.4f}",
        "  0 is guessing, 1 no error; +- is the standard error of so many items.",
        *whole,
    ]


def harness_line(score: HarnessScore) -> str:
    """Return a task's metric with its standard error where the harness has one."""
    error = "" if score.standard_error is None else f" +- {score.standard_error:.4f}"
    items = "" if score.num_items is None else f"   of {score.num_items:,}"
    return f"  {score.task:<28} {score.metric:<18} {score.value:.4f}{error}{items}"
