"""A run's last page: its result beside compressors', its cost, the next commands to try.

Lines are never wrapped here: paths and commands are copied whole.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.observed.speed_names import ALL_OF_THEM, speed_name
from lmtrain.accounting.observed.time_accounts import WORK_KINDS, kind_words
from lmtrain.accounting.options.optimizer import HIGHEST_RATE
from lmtrain.accounting.quantities import format_count, format_quantity, parse_quantity, typed_hours
from lmtrain.report.kept_flags import kept_flags
from lmtrain.report.run_page.profile_page import profile_lines
from lmtrain.report.runs.facts import REPORT_FILE, RunFacts, command, read_run
from lmtrain.report.runs.held_out_score import HeldOutScore
from lmtrain.report.runs.speeds import speed_words
from lmtrain.report.show import plain_text, show
from lmtrain.report.visible_text import visible
from lmtrain.tracking.timekeeping.events import EARLY_STOPPING
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

SAMPLE_LINES = 14
NUM_KINDS_OF_TIME = 4
BEYOND: Final = 1.05  # of a budget of time: less is the last step, and the save
OF_TEXT = ("source", "data", "init_from")  # groups and keys of a run on a text of its own
WITHOUT_STOPPING = "callbacks.early_stopping=null"  # a run that it ended is ended by it again
ROUNDED_UP = frozenset({"budget.epochs", "budget.tokens_per_parameter", "budget.flops"})  # twice may be one step too


def print_summary(folder: Path, *, allowed: Sequence[str] = ()) -> None:
    """Print the summary of a run's folder, in colour on a terminal.

    `allowed` are the targets of `--allow-target`, as typed here: a folder's own word for them is no one's here.
    """
    show(page(replace(read_run(folder), allowed=tuple(allowed))), soft_wrap=True)


def summarize(folder: Path) -> str:
    """Return the summary of a run's folder as plain text."""
    return plain_text(page(read_run(folder)), soft_wrap=True)


def page(facts: RunFacts) -> RenderableType:
    """Lay out the facts of a run; unknown ones are left out."""
    parts: list[RenderableType] = [Text(""), Rule(Text(facts.name, style="bold"), style="dim cyan"), _took(facts)]
    if facts.time.wall_seconds:
        parts += [_time(facts), *_beyond_budget(facts), *_speeds(facts)]
    if facts.reason:
        parts.append(Text(f"{facts.ended.lower()}: {facts.reason}", style="red"))
    if facts.held_out:
        parts += [_heading(_how_measured(facts.held_out)), *_scores(facts.held_out)]
    if profile := profile_lines(facts.folder):
        parts += [_heading("Where the profiled steps went"), *map(Text, profile)]
    if facts.sample:
        parts += [_heading("A sample of what it writes"), *_sample(facts)]
    parts += [_heading("Where it is"), *_places(facts)]
    parts += [_heading("Next"), *_next_commands(facts)]
    return Group(*parts)


def _took(facts: RunFacts) -> Text:
    told = f" ({whose})" if (whose := facts.own.inherited_words) else ""
    said = [f"{format_quantity(facts.tokens)} tokens{told} in {format_count(facts.step, 'step')}"]
    if facts.seconds is not None and facts.tokens_per_second is not None:
        share = f"{facts.loss_share:.0%} of all; " if facts.loss_share <= ALL_OF_THEM else ""
        speed = f"{format_quantity(round(facts.tokens_per_second))} {speed_name(facts.loss_share)}"
        timed = f"timed over {format_quantity(facts.seconds, 'seconds')} after the first step"
        said.append(f"{speed} ({share}{timed})")
    if facts.mfu_palm is not None:
        said.append(f"MFU {facts.mfu_palm:.1%} ({facts.mfu_by})")
    if facts.usd is not None:
        said.append(format_quantity(facts.usd, "usd"))
    if facts.skipped_steps:
        said.append(f"{format_count(facts.skipped_steps, 'step')} skipped as spikes")
    return Text(", ".join(said))


def _time(facts: RunFacts) -> Text:
    """Say where the clock's time went, the largest kinds first, and where to read all of it."""
    kinds = sorted(facts.time.seconds, key=lambda kind: -facts.time.seconds[kind])[:NUM_KINDS_OF_TIME]
    shares = ", ".join(f"{kind_words(kind)} {facts.time.share(kind):.0%}" for kind in kinds)
    clock = format_quantity(facts.time.wall_seconds, "seconds")
    return Text(f"{clock} on the clock: {shares}; all of it: lmtrain ledger {shlex.quote(str(facts.folder))}")


def _beyond_budget(facts: RunFacts) -> list[Text]:
    """Tell of a budget of time that the run went past, with the part of its steps."""
    budgets = facts.budgets
    hours, dollars = budgets.get("budget.hours"), budgets.get("budget.usd")
    said: list[str] = []
    if hours is not None and facts.time.wall_seconds > BEYOND * 3600 * hours:
        said.append(f"{format_quantity(facts.time.wall_seconds, 'seconds')} of budget.hours={typed_hours(hours)}")
    if dollars is not None and facts.usd is not None and facts.usd > BEYOND * dollars:
        said.append(f"{format_quantity(facts.usd, 'usd')} of budget.usd={dollars:g}")
    steps = format_quantity(sum(facts.time.seconds.get(kind, 0.0) for kind in WORK_KINDS), "seconds")
    line = f"beyond its budget: {' and '.join(said)}, {steps} of it work in steps"
    return [Text(line, style="bold red")] if said else []


def _speeds(facts: RunFacts) -> list[Text]:
    """Set the speeds of one run beside one another, each with its own seconds."""
    told = speed_words(facts.speeds, lambda value: format_quantity(round(value)), time=facts.time)
    return [Text(f"{speed_name(facts.loss_share)}: {told}")] if told and facts.tokens_per_second is not None else []


def _how_measured(held_out: HeldOutScore) -> str:
    windows = f"windows of {held_out.context_tokens} tokens"
    return f"Bits per byte of held-out text: {held_out.part_words}, {windows}"


def _scores(held_out: HeldOutScore) -> list[Text]:
    """List model and compressors, the worst first."""
    worst_first = held_out.worst_first()
    lines = _aligned([(name, f"{value:.3f}") for name, value in worst_first])
    for line, (name, _) in zip(lines, worst_first, strict=True):
        line.stylize("bold cyan" if name == held_out.after_words else "dim")
    return lines


def _sample(facts: RunFacts) -> list[Text]:
    text = f"{facts.sample.get('prompt', '')}{facts.sample.get('text', '')}"
    lines = printable(text).splitlines()
    shown = [*lines[:SAMPLE_LINES], *(["[...]"] if len(lines) > SAMPLE_LINES else [])]
    return [Text(f"  {line}", style="green") for line in shown]


def printable(text: str) -> str:
    """Replace a terminal's control characters: a model may write any byte."""
    return visible(text).expandtabs(4)


def _places(facts: RunFacts) -> list[Text]:
    rows = [(name, str(checkpoint.path)) for name, checkpoint in _named_checkpoints(facts)]
    if facts.unkept_best is not None:
        rows.append(("best validation", str(facts.unkept_best)))
    rows.append(("metrics", str(facts.folder / "metrics.jsonl")))
    rows.append(("all of it as a page", str(facts.folder / REPORT_FILE)))
    if facts.mlflow_run_id:
        rows.append(("MLflow run", facts.mlflow_run_id))
    return _aligned(rows)


def _named_checkpoints(facts: RunFacts) -> list[tuple[str, CheckpointFacts]]:
    if facts.last is None:
        return []
    if facts.best is None:
        return [("checkpoint", facts.last)]
    score = f"({facts.best.metrics[BITS_PER_BYTE]:.3f})"
    if facts.best == facts.last:
        return [("checkpoint, the best too" if facts.unkept_best is None else f"checkpoint {score}", facts.last)]
    best = f"best {'' if facts.unkept_best is None else 'kept '}checkpoint {score}"
    return [("last checkpoint", facts.last), (best, facts.best)]


def _next_commands(facts: RunFacts) -> list[Text]:
    commands = _of_one_under_way(facts) if facts.ended == "RUNNING" else _of_one_at_its_end(facts)
    words = ["lmtrain", "ui" if facts.mlflow_run_id else "ls", *([facts.root] if facts.root != RunFacts.root else [])]
    commands.append(("see all runs", shlex.join(words)))
    return [line for what, words in commands for line in (Text(f"  # {what}", style="dim"), Text(f"  {words}"))]


def _of_one_under_way(facts: RunFacts) -> list[tuple[str, str]]:
    """Follow and stop it: its own command is refused until it ends."""
    verbs = (("follow it", "tail"), ("stop it, with a checkpoint", "stop"), ("see where its time goes", "ledger"))
    return [(what, shlex.join(["lmtrain", verb, str(facts.folder)])) for what, verb in verbs]


def _of_one_at_its_end(facts: RunFacts) -> list[tuple[str, str]]:
    onward = _onward(facts)
    commands = [(what, command(facts, f"run.name={facts.name}", "resume=", *budget)) for what, budget in onward]
    if facts.last is not None:
        allowed = kept_flags(config_dir=None, allowed=facts.allowed)
        commands.append(("talk to it", shlex.join(["lmtrain", "chat", str(facts.folder), *allowed])))
    if facts.lr and (facts.fork is None or facts.fork.kept_checkpoint):
        middle = facts.lr if facts.lr * 2 <= HIGHEST_RATE else facts.lr / 2
        sweep = f"optimizer.lr={middle / 2:g},{middle:g},{middle * 2:g}"
        commands.append(("try three learning rates", command(facts, "run.name=", _start(facts), sweep, sweep=True)))
    is_bound = facts.fork is not None  # a fork goes on with the text of the run that it left
    if not is_bound and not any(word.lstrip("+").startswith(OF_TEXT) for word in facts.overrides):
        own_text = ("source=files", "source.paths=[my/notes]")
        commands.append(("learn your own text", command(facts, "run.name=", "resume=", *own_text)))
    return commands


def _start(facts: RunFacts) -> str:
    """Return the word for the start of another run like this one: a fork's is where it left its first run."""
    if facts.fork is None:
        return "resume="
    typed = [word for word in facts.overrides if word.startswith("resume=")]
    is_start = typed and not facts.fork.noted and facts.fork.starts_at(Path(typed[-1].partition("=")[2]))
    return typed[-1] if is_start else f"resume={facts.fork.checkpoint}"


def _onward(facts: RunFacts) -> list[tuple[str, list[str]]]:
    """Say how this run goes on and by which words; nothing where no budget is known to train another step."""
    if facts.early_stop == EARLY_STOPPING:
        return [("train on to its budget, without early stopping", [WITHOUT_STOPPING])]
    if facts.early_stop is not None:
        further = _further(facts)
        return [(f"{what}, without early stopping", [WITHOUT_STOPPING, *budgets]) for what, budgets in further]
    return _further(facts)


def _further(facts: RunFacts) -> list[tuple[str, list[str]]]:
    if facts.ended != "FINISHED":
        return [(f"go on, from {'its checkpoint' if facts.last else 'the start'} to its budget", [])]
    spent = {"budget.hours": facts.time.wall_seconds / 3600, "budget.usd": facts.usd or 0.0}
    budgets = {key: max(amount, spent.get(key, 0.0)) for key, amount in facts.budgets.items()}
    if facts.step != 1:
        what = "the budget" if budgets == facts.budgets else "what it took"
        return [(f"train on, to twice {what}", [_twice(key, amount) for key, amount in budgets.items()])]
    if budgets.keys() & ROUNDED_UP:
        return []
    if "budget.tokens" in budgets:
        budgets["budget.tokens"] = max(budgets["budget.tokens"], facts.tokens)
    return [("train on, to two steps or more", [_twice(key, amount) for key, amount in budgets.items()])]


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
    """Write rows of a name and a value, the values under one another."""
    width = max(len(name) for name, _ in rows)
    return [Text.assemble((f"  {name:<{width}}   ", "dim"), value) for name, value in rows]
