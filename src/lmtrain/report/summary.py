"""A run's last page in the terminal: its result next to compressors', its cost, and the next commands to try.

Lines are not wrapped: paths and commands are copied whole.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from lmtrain.accounting.observed.metric_names import ALL_OF_THEM, BITS_PER_BYTE, speed_name
from lmtrain.accounting.observed.time_accounts import WORK_KINDS, kind_words
from lmtrain.accounting.options.optimizer import HIGHEST_RATE
from lmtrain.accounting.quantities import format_count, format_quantity, parse_quantity, typed_hours
from lmtrain.report.kept_flags import kept_flags
from lmtrain.report.profile_page import profile_lines
from lmtrain.report.runs.attempts import speed_words
from lmtrain.report.runs.facts import REPORT_FILE, RunFacts, command, read_run
from lmtrain.report.show import plain_text, show
from lmtrain.report.visible_text import visible
from lmtrain.tracking.events import EARLY_STOPPING

SAMPLE_LINES: Final = 14
NUM_KINDS_OF_TIME: Final = 4
BEYOND: Final = 1.05  # of a budget of time; less is the last step and the checkpoint
OF_TEXT: Final = ("source", "data", "init_from")  # groups and keys of a run on a text of one's own
WITHOUT_STOPPING: Final = "callbacks.early_stopping=null"
ROUNDED_UP: Final = frozenset(
    {"budget.epochs", "budget.tokens_per_parameter", "budget.flops"}
)  # 2x may be one step too


def print_summary(folder: Path, *, allowed: Sequence[str] = ()) -> None:
    """Print the summary of a run's folder, in colour on a terminal.

    `allowed` are the targets of `--allow-target` as typed here; those in a folder are not trusted.
    """
    show(page(replace(read_run(folder), allowed=tuple(allowed))), soft_wrap=True)


def summarize(folder: Path) -> str:
    """Return the summary of a run's folder as plain text."""
    return plain_text(page(read_run(folder)), soft_wrap=True)


def page(facts: RunFacts) -> RenderableType:
    """Lay out the facts of a run; unknown ones are left out."""
    parts: list[RenderableType] = [Text(""), Rule(Text(facts.name, style="bold"), style="dim cyan"), _took(facts)]
    if facts.time.wall_seconds:
        parts += _time(facts)
    if facts.reason:
        parts.append(Text(f"{facts.ended.lower()}: {facts.reason}", style="red"))
    if (held_out := facts.held_out) is not None:
        read = f"{held_out.part_words}, windows of {held_out.context_tokens} tokens"
        parts.append(_heading(f"Bits per byte of held-out text: {read}"))
        rows = [(name, f"{value:.3f}") for name, value in held_out.worst_first()]
        for (name, _), line in zip(rows, _aligned(rows), strict=True):
            line.stylize("bold cyan" if name == held_out.after_words else "dim")
            parts.append(line)
    if profile := profile_lines(facts.folder):
        parts += [_heading("Where the profiled steps went"), *map(Text, profile)]
    if facts.sample:
        parts += [_heading("A sample of what it writes"), *_sample(facts)]
    parts += [_heading("Where it is"), *_places(facts)]
    parts += [_heading("Next"), *_next_commands(facts)]
    return Group(*parts)


def _took(facts: RunFacts) -> Text:
    inherited = f" ({words})" if (words := facts.own.inherited_words) else ""
    parts = [f"{format_quantity(facts.tokens)} tokens{inherited} in {format_count(facts.step, 'step')}"]
    if facts.seconds is not None and facts.tokens_per_second is not None:
        share = f"{facts.loss_share:.0%} of all; " if facts.loss_share <= ALL_OF_THEM else ""
        speed = f"{format_quantity(round(facts.tokens_per_second))} {speed_name(facts.loss_share)}"
        parts.append(f"{speed} ({share}timed over {format_quantity(facts.seconds, 'seconds')} after the first step)")
    if facts.mfu_palm is not None:
        parts.append(f"MFU {facts.mfu_palm:.1%} ({facts.mfu_by})")
    if facts.usd is not None:
        parts.append(format_quantity(facts.usd, "usd"))
    if facts.skipped_steps:
        parts.append(f"{format_count(facts.skipped_steps, 'step')} skipped as spikes")
    return Text(", ".join(parts))


def _time(facts: RunFacts) -> list[Text]:
    """Return the largest kinds of time, a budget of time that was exceeded, and the speeds."""
    kinds = sorted(facts.time.seconds, key=lambda kind: -facts.time.seconds[kind])[:NUM_KINDS_OF_TIME]
    shares = ", ".join(f"{kind_words(kind)} {facts.time.share(kind):.0%}" for kind in kinds)
    clock = format_quantity(facts.time.wall_seconds, "seconds")
    lines = [Text(f"{clock} on the clock: {shares}; all of it: lmtrain ledger {shlex.quote(str(facts.folder))}")]
    hours, dollars = facts.budgets.get("budget.hours"), facts.budgets.get("budget.usd")
    beyond: list[str] = []
    if hours is not None and facts.time.wall_seconds > BEYOND * 3600 * hours:
        beyond.append(f"{clock} of budget.hours={typed_hours(hours)}")
    if dollars is not None and facts.usd is not None and facts.usd > BEYOND * dollars:
        beyond.append(f"{format_quantity(facts.usd, 'usd')} of budget.usd={dollars:g}")
    if beyond:
        steps = format_quantity(sum(facts.time.seconds.get(kind, 0.0) for kind in WORK_KINDS), "seconds")
        line = f"beyond its budget: {' and '.join(beyond)}, {steps} of it work in steps"
        lines.append(Text(line, style="bold red"))
    speeds = speed_words(facts.speeds, lambda value: format_quantity(round(value)), time=facts.time)
    if speeds and facts.tokens_per_second is not None:
        lines.append(Text(f"{speed_name(facts.loss_share)}: {speeds}"))
    return lines


def _sample(facts: RunFacts) -> list[Text]:
    text = visible(f"{facts.sample.get('prompt', '')}{facts.sample.get('text', '')}").expandtabs(4)
    lines = text.splitlines()
    shown = [*lines[:SAMPLE_LINES], *(["[...]"] if len(lines) > SAMPLE_LINES else [])]
    return [Text(f"  {line}", style="green") for line in shown]


def _places(facts: RunFacts) -> list[Text]:
    rows: list[tuple[str, str]] = []
    last, best = facts.last, facts.best
    score = f"({best.metrics[BITS_PER_BYTE]:.3f})" if best else ""
    if last is not None and best == last:
        name = "checkpoint, the best too" if facts.unkept_best is None else f"checkpoint {score}"
        rows.append((name, str(last.path)))
    elif last is not None:
        rows.append(("last checkpoint" if best else "checkpoint", str(last.path)))
        if best is not None:
            kept = "" if facts.unkept_best is None else "kept "
            rows.append((f"best {kept}checkpoint {score}", str(best.path)))
    if facts.unkept_best is not None:
        rows.append(("best validation", str(facts.unkept_best)))
    rows.append(("metrics", str(facts.folder / "metrics.jsonl")))
    rows.append(("all of it as a page", str(facts.folder / REPORT_FILE)))
    if facts.mlflow_run_id:
        rows.append(("MLflow run", facts.mlflow_run_id))
    return _aligned(rows)


def _next_commands(facts: RunFacts) -> list[Text]:
    commands = _of_a_running_one(facts) if facts.ended == "RUNNING" else _of_an_ended_one(facts)
    words = ["lmtrain", "ui" if facts.mlflow_run_id else "ls", *([facts.root] if facts.root != RunFacts.root else [])]
    commands.append(("see all runs", shlex.join(words)))
    return [line for what, words in commands for line in (Text(f"  # {what}", style="dim"), Text(f"  {words}"))]


def _of_a_running_one(facts: RunFacts) -> list[tuple[str, str]]:
    verbs = (("follow it", "tail"), ("stop it, with a checkpoint", "stop"), ("see where its time goes", "ledger"))
    return [(what, shlex.join(["lmtrain", verb, str(facts.folder)])) for what, verb in verbs]


def _of_an_ended_one(facts: RunFacts) -> list[tuple[str, str]]:
    commands: list[tuple[str, str]] = []
    if (onward := _onward(facts)) is not None:
        what, words = onward
        commands.append((what, command(facts, f"run.name={facts.name}", "resume=", *words)))
    if facts.last is not None:
        allowed = kept_flags(config_dir=None, allowed=facts.allowed)
        commands.append(("talk to it", shlex.join(["lmtrain", "chat", str(facts.folder), *allowed])))
    if facts.lr and (facts.fork is None or facts.fork.kept_checkpoint):
        middle = facts.lr if facts.lr * 2 <= HIGHEST_RATE else facts.lr / 2
        sweep = f"optimizer.lr={middle / 2:g},{middle:g},{middle * 2:g}"
        commands.append(("try three learning rates", command(facts, "run.name=", _start(facts), sweep, sweep=True)))
    if facts.fork is None and not any(word.lstrip("+").startswith(OF_TEXT) for word in facts.overrides):
        own_text = ("source=files", "source.paths=[my/notes]")
        commands.append(("learn your own text", command(facts, "run.name=", "resume=", *own_text)))
    return commands


def _start(facts: RunFacts) -> str:
    """Return the override for another run that starts like this one: a fork starts at its parent's checkpoint."""
    if facts.fork is None:
        return "resume="
    typed = [word for word in facts.overrides if word.startswith("resume=")]
    is_start = typed and not facts.fork.noted and facts.fork.starts_at(Path(typed[-1].partition("=")[2]))
    return typed[-1] if is_start else f"resume={facts.fork.checkpoint}"


def _onward(facts: RunFacts) -> tuple[str, list[str]] | None:
    """Say how this run continues and with which overrides; None if no known budget trains another step."""
    if facts.early_stop == EARLY_STOPPING:
        return "train on to its budget, without early stopping", [WITHOUT_STOPPING]
    further = _further(facts)
    if facts.early_stop is None or further is None:
        return further
    what, words = further
    return f"{what}, without early stopping", [WITHOUT_STOPPING, *words]


def _further(facts: RunFacts) -> tuple[str, list[str]] | None:
    if facts.ended != "FINISHED":
        return f"go on, from {'its checkpoint' if facts.last else 'the start'} to its budget", []
    spent = {"budget.hours": facts.time.wall_seconds / 3600, "budget.usd": facts.usd or 0.0}
    budgets = {key: max(amount, spent.get(key, 0.0)) for key, amount in facts.budgets.items()}
    what = f"train on, to twice {'the budget' if budgets == facts.budgets else 'what it took'}"
    if facts.step == 1:
        if budgets.keys() & ROUNDED_UP:
            return None
        what = "train on, to two steps or more"
        if "budget.tokens" in budgets:
            budgets["budget.tokens"] = max(budgets["budget.tokens"], facts.tokens)
    return what, [_twice(key, amount) for key, amount in budgets.items()]


def _twice(key: str, amount: float) -> str:
    if key == "budget.hours":
        return f"{key}={typed_hours(2 * amount)}"
    if key in ("budget.usd", "budget.epochs"):
        return f"{key}={2 * amount:.4g}"
    short = format_quantity(2 * amount)
    return f"{key}={short if parse_quantity(short) == 2 * amount else f'{2 * amount:.0f}'}"


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _aligned(rows: Sequence[tuple[str, str]]) -> list[Text]:
    """Write rows of a name and a value, with the values below one another."""
    width = max(len(name) for name, _ in rows)
    return [Text.assemble((f"  {name:<{width}}   ", "dim"), value) for name, value in rows]
