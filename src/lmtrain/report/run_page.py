"""report.html: a run's whole record in one file for any browser, on a phone too, without scripts."""

import math
import shlex
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS, speed_name
from lmtrain.accounting.observed.time_accounts import accounts
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.charts import swatch, time_bars
from lmtrain.report.ledger import RunLedger, read_ledger
from lmtrain.report.ledger_page import kinds_of_time, reasons
from lmtrain.report.markup import Markup, details, joined, section, table, tag, tiles, web_page
from lmtrain.report.profile_page import profile_section
from lmtrain.report.report_card import shown_score
from lmtrain.report.run_curves import curve_sections
from lmtrain.report.runs.attempts import read_attempts, speed_words
from lmtrain.report.runs.facts import REPORT_FILE, RunFacts, read_run
from lmtrain.report.runs.find import has_status
from lmtrain.report.runs.held_out import AFTER, HeldOutScore
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json, write_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, logged_points
from lmtrain.tracking.scores import all_scores
from lmtrain.training.checkpointing.checkpoints import list_checkpoints

NAMED_VERSIONS: Final = {"python", "lmtrain", "torch", "lightning", "numpy", "tokenizers", "mlflow"}
MOST_SAMPLES: Final = 8
WINDOW_STEPS: Final = 128  # as in spikes=skip
LEAST_STEPS: Final = 16
NUM_SIGMAS: Final = 6.0
MOST_SPIKES: Final = 5
TOP_SPEED: Final = "the tile has whole steps: logged ones but the first, with all delays between pauses."
TOP_MFU: Final = "is of whole steps with their delays; the table's is of computing alone"
Texts = Callable[[int], Sequence[str]]  # of a step


def write_report(folder: Path, *, texts: Texts | None = None) -> Path:
    """Write report.html into a run's folder and return its path; `texts` gives those of a step, for spikes.

    Raises:
        ConfigurationError: The folder is not a run's.
    """
    path = folder / REPORT_FILE
    write_text(path, report_page(folder, texts=texts))
    return path


def report_page(folder: Path, *, texts: Texts | None = None) -> str:
    """Return the page of a run's folder; unknown facts are left out."""
    points = logged_points(folder)
    ledger, facts = known_ledger(folder, points), read_run(folder)
    parts = [_header(facts, ledger), *curve_sections(folder, points)]
    parts.append(spikes_section(points, texts=texts, run=str(folder)))
    if ledger is not None:
        parts += [_time(folder, ledger, facts.tokens_per_second), _plan(ledger, facts.mfu_palm)]
    parts += [profile_section(folder), _held_out(facts.held_out), _evaluated(folder)]
    parts += [section("Samples of what it writes", *_samples(folder)), _checkpoints(folder), _settings(folder)]
    return web_page(f"{facts.name}: a run of lmtrain", *parts)


def known_ledger(folder: Path, points: Sequence[Point]) -> RunLedger | None:
    """Return a run's accounts, None for a run without any.

    Raises:
        ConfigurationError: The folder is not a run's.
    """
    try:
        return read_ledger(folder, points=points)
    except ConfigurationError:
        if not has_status(folder):
            raise
        return None


def _header(facts: RunFacts, ledger: RunLedger | None) -> Markup:
    step = ledger.step if ledger else facts.step
    tokens = step * ledger.steps.tokens_per_step if ledger else facts.tokens
    shown: list[tuple[str, str]] = []
    if (held_out := facts.held_out) is not None:
        when = "" if held_out.after_words == AFTER else f", {held_out.after_words}"
        shown.append((f"bits per byte, held out{when}", f"{held_out.after:.3f}"))
    shown += [("steps", f"{step:,}"), ("tokens", format_quantity(tokens))]
    if facts.own.fork is not None:
        inherited = format_quantity(facts.own.inherited_tokens)
        shown.append((f"of the tokens those of {facts.own.fork.run_words}", inherited))
    if facts.tokens_per_second is not None:
        shown.append((speed_name(facts.loss_share), format_quantity(round(facts.tokens_per_second))))
    if facts.mfu_palm is not None:
        shown.append((f"MFU ({facts.mfu_by})", f"{facts.mfu_palm:.1%}"))
    if ledger is not None:
        shown.append(("goodput", f"{ledger.time.goodput:.1%}"))
        shown.append(("on the clock", format_quantity(ledger.time.wall_seconds, "seconds")))
        shown += [("cost", format_quantity(ledger.usd, "usd"))] if ledger.usd is not None else []
        shown += [("kWh at rated power", f"{ledger.kwh:,.3g}")] if ledger.kwh is not None else []
    status = "" if ledger is None else f"{ledger.status.lower()} at step {step:,} of {ledger.num_steps:,}"
    reason = [] if facts.reason is None else [tag("p", facts.reason)]
    return tag("header", tag("h1", facts.name), tag("p", status), *reason, tiles(shown))


@dataclass(frozen=True, kw_only=True)
class LossSpike:
    """A step, its loss in nats per token and the mean of the steps before it; `was_skipped`: nothing was learned."""

    step: int
    loss: float
    mean: float
    was_skipped: bool = False

    @property
    def height(self) -> float:
        """Return the loss above the mean; infinite for a loss that is not a number."""
        return self.loss - self.mean if math.isfinite(self.loss) and math.isfinite(self.mean) else math.inf


def find_spikes(points: Sequence[Point]) -> list[LossSpike]:
    """Return the steps 6 deviations above the mean of 128 steps before, not finite, or skipped; the highest first."""
    recent: deque[float] = deque(maxlen=WINDOW_STEPS)
    found: list[LossSpike] = []
    num_skipped = 0.0
    for point in points:
        loss = point.metrics.get(TRAIN_LOSS)
        if loss is None:
            continue
        skipped = point.metrics.get("train/skipped_steps", num_skipped)
        mean = statistics.fmean(recent) if recent else math.nan
        stands_out = len(recent) >= LEAST_STEPS and loss > mean + NUM_SIGMAS * statistics.pstdev(recent)
        if skipped > num_skipped or stands_out or not math.isfinite(loss):
            found.append(LossSpike(step=point.step, loss=loss, mean=mean, was_skipped=skipped > num_skipped))
        num_skipped = skipped
        if math.isfinite(loss):
            recent.append(loss)
    return sorted(found, key=lambda spike: -spike.height)


def spikes_section(points: Sequence[Point], *, texts: Texts | None, run: str) -> Markup:
    """Return the highest spikes of the loss with their text; nothing without any."""
    spikes = find_spikes(points)
    shown = spikes[:MOST_SPIKES]
    if not spikes:
        return Markup("")
    words = (
        f"{format_count(len(spikes), 'step')}, each {NUM_SIGMAS:g} deviations above the {WINDOW_STEPS} before it, or "
        f"skipped; the highest {len(shown)}. All of a step's text: lmtrain data show {shlex.quote(run)} --step N"
    )
    rows = [
        (f"{spike.step:,}", f"{spike.loss:.4g}", f"{spike.mean:.4g}", "skipped" if spike.was_skipped else "trained")
        for spike in shown
    ]
    read = [(spike.step, texts(spike.step) if texts else ()) for spike in shown]
    folded = [details(f"text of step {step:,}", "\n\n".join(lines)) for step, lines in read]
    listed = table(rows, head=("step", "loss", "mean before", ""), numeric=True)
    return section("Spikes of the loss", tag("p", words), listed, *folded)


def _time(folder: Path, ledger: RunLedger, speed_of_log: float | None) -> Markup:
    by_attempt = accounts(read_attempts(folder, is_running=ledger.status == "RUNNING"))
    kinds, spent = kinds_of_time(ledger), ledger.time
    rows = [(swatch(kind), format_quantity(spent.seconds[kind], "seconds"), f"{spent.share(kind):.1%}")
            for kind in kinds]  # fmt: skip
    total = ("total", format_quantity(spent.wall_seconds, "seconds"), "100.0%")
    many = f"{spent.num_attempts} attempts, one bar each, the oldest first."
    bars = [*([tag("p", many)] if len(by_attempt) > 1 else []), time_bars(by_attempt, kinds=kinds)]
    parts = [tag("div", *bars, class_="bars"), table([*rows, total], numeric=True)]
    if speed_of_log is not None:
        words = speed_words(ledger.tokens_per_second, lambda value: format_quantity(round(value)), time=spent)
        parts.append(tag("p", f"{speed_name(ledger.trained_share).capitalize()}: {words}; {TOP_SPEED}"))
    if ledger.biggest_lever:
        parts.append(tag("p", f"Biggest lever: {ledger.biggest_lever}"))
    return section("Where the time went", *parts)


def _plan(ledger: RunLedger, mfu_of_log: float | None) -> Markup:
    found, is_masked = ledger.beside_plan, ledger.trained_share < 1
    if found is None:
        return Markup("")
    took = [format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds)]
    name = "MFU (PaLM) of computing" + (", of all tokens" if is_masked else "")
    name += ", by the plan's peak" if found.is_of_other_peak else ""
    rows = [
        ("time on the clock, of all kinds", *took),
        (name, f"{found.planned_mfu:.1%}", f"{found.mfu:.1%}"),
    ]
    listed = table(rows, head=("", f"planned ({found.mfu_source})", "fact"), numeric=True)
    counted = ", and of tokens with loss" if is_masked else ""
    note = [] if mfu_of_log is None else [tag("p", f"The tile's MFU, {mfu_of_log:.1%}, {TOP_MFU}{counted}.")]
    why = reasons(found, trained_share=ledger.trained_share)
    explained = table(why, head=("why", "time", "of the difference"), numeric=True)
    return section("Plan and fact", listed, *note, tag("h3", "The difference, explained"), explained)


def _held_out(held_out: HeldOutScore | None) -> Markup:
    if held_out is None:
        return Markup("")
    rows = [(name, f"{score:.3f}") for name, score in held_out.worst_first()]
    read = f"{held_out.part_words}, in windows of {held_out.context_tokens} tokens"
    return section("Held-out text", tag("p", f"Bits per byte; the model read {read}."), table(rows, numeric=True))


def _evaluated(folder: Path) -> Markup:
    """Return the scores of `lmtrain evaluate`, with their standard errors."""

    def name_of(name: str, score: Mapping[str, Any]) -> str:
        words = name.removeprefix("evaluation/").replace("/", ", ").replace("_", " ")
        return f"{words}, of {score['num_bytes']:,} bytes" if "num_bytes" in score else words

    rows = [
        (name_of(name, one), f"{step:,}", shown_score(one))
        for step, scores in all_scores(folder).items()
        for name, one in scores.items()
    ]
    listed = table(rows, head=("score", "step", "± standard error"), numeric=True) if rows else ""
    return section("Scores by lmtrain evaluate", listed)


def _samples(folder: Path) -> list[Markup]:
    """Return the newest sample, and earlier ones, evenly over the run, folded."""
    rows = [row for line in _text(folder, folder / "samples.jsonl").splitlines() if (row := _sample_of(line))]
    earlier = rows[:-1]
    kept = earlier[:: max(1, math.ceil(len(earlier) / MOST_SAMPLES))]
    newest = [tag("pre", text) for _, text in rows[-1:]]
    return [*newest, *(details(f"at step {step:,}", text) for step, text in kept)]


def _sample_of(line: str) -> tuple[int, str] | None:
    """Return a sample's step and text; None for a line cut short by a crash."""
    try:
        row = foreign_json.parse(line)
        return int(row.get("step", 0)), f"{row.get('prompt', '')}{row['text']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checkpoints(folder: Path) -> Markup:
    rows = [
        (
            f"{facts.step:,}",
            format_quantity(facts.tokens),
            f"{facts.metrics[BITS_PER_BYTE]:.3f}" if BITS_PER_BYTE in facts.metrics else "-",
            str(facts.path),
        )
        for facts in list_checkpoints(folder / "checkpoints")
    ]
    return section("Checkpoints", table(rows, head=("step", "tokens", "bits per byte", "where")) if rows else "")


def _settings(folder: Path) -> Markup:
    """Show the overrides, the whole config, versions and devices of the newest attempt."""
    newest = RunFolder(folder).accepted_attempt()
    if newest is None:
        return Markup("")
    changed = _text(folder, newest / "overrides.txt") or "nothing: the defaults"
    versions: dict[str, Any] = _json(folder, newest / "versions.json")
    named = {name: version for name, version in versions.items() if name in NAMED_VERSIONS}
    ran_on = _json(folder, newest / "git.json") | named | _json(folder, newest / "devices.json")
    rows = [(name, str(value)) for name, value in ran_on.items() if value is not None]
    return joined(
        [
            section("Changed from the defaults", tag("pre", changed)),
            details("The whole config", _text(folder, newest / "config.yaml")),
            section("Versions and devices", table(rows)),
            details("All versions", "\n".join(f"{name} {version}" for name, version in versions.items())),
        ]
    )


def _text(folder: Path, path: Path) -> str:
    """Return the text of a run's own file; "" without one, or if it is a link to a file outside the run."""
    is_own = path.is_file() and RunFolder(folder).owns(path)
    return path.read_text(errors="replace").strip() if is_own else ""


def _json(folder: Path, path: Path) -> dict[str, Any]:
    return read_json(path) if RunFolder(folder).owns(path) else {}
