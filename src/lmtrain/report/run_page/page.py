"""report.html: a run's whole record in one file for any browser, a phone's too, without scripts."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.observed.speed_names import speed_name
from lmtrain.accounting.observed.time_accounts import accounts
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.charts import swatch, time_bars
from lmtrain.report.ledger.page import kinds_of_time, reasons
from lmtrain.report.ledger.run_ledger import RunLedger, read_ledger
from lmtrain.report.markup import Markup, joined, table, tag
from lmtrain.report.run_page.curves import curve_sections
from lmtrain.report.run_page.loss_spikes import Texts, spikes_section
from lmtrain.report.run_page.profile_page import profile_section
from lmtrain.report.run_page.report_card import shown_score
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.facts import REPORT_FILE, RunFacts, read_run
from lmtrain.report.runs.held_out_score import RESULT, HeldOutScore
from lmtrain.report.runs.speeds import speed_words
from lmtrain.report.web_page import section, tiles, web_page
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json, write_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, logged_points
from lmtrain.tracking.scores import all_scores
from lmtrain.training.checkpointing.checkpoints import list_checkpoints

NAMED_VERSIONS: Final = {"python", "lmtrain", "torch", "lightning", "numpy", "tokenizers", "mlflow"}
MOST_SAMPLES: Final = 8
TOP_SPEED: Final = "of the logged steps but the first, with all that held them up between pauses."
TOP_MFU: Final = "is of the logged steps but the first, with all that held them up; here of computing, in all steps"


def write_report(folder: Path, *, texts: Texts | None = None) -> Path:
    """Write report.html into a run's folder and return its path; `texts` gives those of a step, for spikes.

    Raises:
        ConfigurationError: The folder holds no run.
    """
    path = folder / REPORT_FILE
    write_text(path, report_page(folder, texts=texts))
    return path


def report_page(folder: Path, *, texts: Texts | None = None) -> str:
    """Return the page of a run's folder; unknown facts are left out."""
    points = logged_points(folder)
    ledger, facts = known_ledger(folder, points), read_run(folder)
    sections = [
        _header(facts, ledger),
        *curve_sections(folder, points),
        spikes_section(points, texts=texts, run=str(folder)),
        *([] if ledger is None else [_time(folder, ledger, facts.tokens_per_second), _plan(ledger, facts.mfu_palm)]),
        profile_section(folder),
        _held_out(facts.held_out),
        _evaluated(folder),
        section("Samples of what it writes", *_samples(folder)),
        _checkpoints(folder),
        _settings(folder),
    ]
    return web_page(f"{facts.name}: a run of lmtrain", *sections)


def known_ledger(folder: Path, points: Sequence[Point]) -> RunLedger | None:
    """Return a run's accounts beside its log's points, None for a run without any.

    Raises:
        ConfigurationError: The folder holds no run.
    """
    try:
        return read_ledger(folder, points=points)
    except ConfigurationError:
        if not (folder / "status.json").exists():
            raise
        return None


def _header(facts: RunFacts, ledger: RunLedger | None) -> Markup:
    step = ledger.step if ledger else facts.step
    tokens = step * ledger.steps.tokens_per_step if ledger else facts.tokens
    shown = [] if facts.held_out is None else [(_score_name(facts.held_out), f"{facts.held_out.after:.3f}")]
    shown += [("steps", f"{step:,}"), ("tokens", format_quantity(tokens))]
    if facts.own.fork is not None:
        shown.append(
            (f"of the tokens those of {facts.own.fork.run_words}", format_quantity(facts.own.inherited_tokens))
        )
    if facts.tokens_per_second is not None:
        shown.append((speed_name(facts.loss_share), format_quantity(round(facts.tokens_per_second))))
    if facts.mfu_palm is not None:
        shown.append((f"MFU ({facts.mfu_by})", f"{facts.mfu_palm:.1%}"))
    if ledger is not None:
        shown.append(("goodput", f"{ledger.time.goodput:.1%}"))
        shown.append(("on the clock", format_quantity(ledger.time.wall_seconds, "seconds")))
        if ledger.usd is not None:
            shown.append(("cost", format_quantity(ledger.usd, "usd")))
        if ledger.kwh is not None:
            shown.append(("kWh at rated power", f"{ledger.kwh:,.3g}"))
    status = "" if ledger is None else f"{ledger.status.lower()} at step {step:,} of {ledger.num_steps:,}"
    why = [] if facts.reason is None else [tag("p", facts.reason)]
    return tag("header", tag("h1", facts.name), tag("p", status), *why, tiles(shown))


def _score_name(held_out: HeldOutScore) -> str:
    name = "bits per byte, held out"
    return name if held_out.after_words == RESULT else f"{name}, {held_out.after_words}"


def _time(folder: Path, ledger: RunLedger, speed_of_log: float | None) -> Markup:
    by_attempt = accounts(read_attempts(folder, is_running=ledger.status == "RUNNING"))
    kinds = kinds_of_time(ledger)
    rows: list[tuple[str, str, str]] = [
        (swatch(kind), format_quantity(ledger.time.seconds[kind], "seconds"), f"{ledger.time.share(kind):.1%}")
        for kind in kinds
    ]
    rows.append(("total", format_quantity(ledger.time.wall_seconds, "seconds"), "100.0%"))
    said = [f"{ledger.time.num_attempts} attempts, one bar each, the oldest first."]
    lever = [tag("p", f"Biggest lever: {ledger.biggest_lever}")] if ledger.biggest_lever else []
    lever = [*_speeds(ledger, speed_of_log), *lever]
    bars = time_bars(by_attempt, kinds=kinds)
    shown = tag("div", *([tag("p", *said)] if len(by_attempt) > 1 else []), bars, class_="bars")
    return section("Where the time went", shown, table(rows, numeric=True), *lever)


def _speeds(ledger: RunLedger, of_log: float | None) -> list[Markup]:
    """Set the speeds of one run beside one another, each with its own clock."""
    if of_log is None:
        return []
    told = speed_words(ledger.tokens_per_second, lambda value: format_quantity(round(value)), time=ledger.time)
    name = speed_name(ledger.trained_share).capitalize()
    return [tag("p", f"{name}: {told}; those over whole steps, at the top, are {TOP_SPEED}")]


def _plan(ledger: RunLedger, mfu_of_log: float | None) -> Markup:
    found = ledger.beside_plan
    if found is None:
        return Markup("")
    took = [format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds)]
    of_what = "MFU (PaLM) of computing" + (", of all tokens" if ledger.trained_share < 1 else "")
    of_what += ", by the plan's peak" if found.is_of_other_peak else ""
    rows = [
        ("time on the clock, of all kinds", *took),
        (of_what, f"{found.planned_mfu:.1%}", f"{found.mfu:.1%}"),
    ]
    beside = table(rows, head=("", f"planned ({found.mfu_source})", "fact"), numeric=True)
    why = table(
        reasons(found, trained_share=ledger.trained_share), head=("why", "time", "of the difference"), numeric=True
    )
    counted = ", and there of tokens with loss" if ledger.trained_share < 1 else ""
    said = [] if mfu_of_log is None else [tag("p", f"MFU at the top, {mfu_of_log:.1%}, {TOP_MFU}{counted}.")]
    return section("Plan beside fact", beside, *said, tag("h3", "The difference, explained"), why)


def _held_out(held_out: HeldOutScore | None) -> Markup:
    if held_out is None:
        return Markup("")
    rows = [(name, f"{score:.3f}") for name, score in held_out.worst_first()]
    read = f"{held_out.part_words}, in windows of {held_out.context_tokens} tokens"
    return section("Held-out text", tag("p", f"Bits per byte; the model read {read}."), table(rows, numeric=True))


def _evaluated(folder: Path) -> Markup:
    """Return the scores by `lmtrain evaluate`, with their standard errors."""
    rows = [
        (_evaluation_words(name, one), f"{step:,}", shown_score(one))
        for step, scores in all_scores(folder).items()
        for name, one in scores.items()
    ]
    listed = table(rows, head=("score", "step", "± standard error"), numeric=True)
    return section("Scores by lmtrain evaluate", *([listed] if rows else []))


def _evaluation_words(name: str, score: Mapping[str, Any]) -> str:
    """Name a score with the bytes it was read from, where they were counted."""
    words = name.removeprefix("evaluation/").replace("/", ", ").replace("_", " ")
    return f"{words}, of {score['num_bytes']:,} bytes" if "num_bytes" in score else words


def _samples(folder: Path) -> list[Markup]:
    """Return the newest sample, and those before it, the oldest first, folded away."""
    file = folder / "samples.jsonl"
    rows = [row for line in file.read_bytes().splitlines() if (row := _sample_of(line))] if file.is_file() else []
    earlier = [
        tag("details", tag("summary", f"at step {step:,}"), tag("pre", text)) for step, text in _evenly(rows[:-1])
    ]
    return [*(tag("pre", text) for _, text in rows[-1:]), *earlier]


def _sample_of(line: bytes) -> tuple[int, str] | None:
    """Return a sample's step and text; None for a line cut short by a crash."""
    try:
        row = foreign_json.parse(line)
        return int(row.get("step", 0)), f"{row.get('prompt', '')}{row['text']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _evenly(rows: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return at most so many, evenly over the run, the first one among them."""
    stride = max(1, math.ceil(len(rows) / MOST_SAMPLES))
    return [*rows[::stride]]


def _checkpoints(folder: Path) -> Markup:
    rows = [
        (f"{facts.step:,}", format_quantity(facts.tokens), _score(facts.metrics), str(facts.path))
        for facts in list_checkpoints(folder / "checkpoints")
    ]
    return section("Checkpoints", *([table(rows, head=("step", "tokens", "bits per byte", "where"))] if rows else []))


def _score(metrics: dict[str, float]) -> str:
    return f"{metrics[BITS_PER_BYTE]:.3f}" if BITS_PER_BYTE in metrics else "-"


def _settings(folder: Path) -> Markup:
    """Show the typed overrides, the whole config, versions and devices of the newest attempt."""
    newest = RunFolder(folder).accepted_attempt()
    if newest is None:
        return Markup("")
    changed = _text(newest / "overrides.txt") or "nothing: the defaults"
    versions: dict[str, Any] = read_json(newest / "versions.json")
    ran_on = {
        **read_json(newest / "git.json"),
        **{name: version for name, version in versions.items() if name in NAMED_VERSIONS},
        **read_json(newest / "devices.json"),
    }
    others = "\n".join(f"{name} {version}" for name, version in versions.items())
    return joined(
        [
            section("Changed from the defaults", tag("pre", changed)),
            _details("The whole config", _text(newest / "config.yaml")),
            section(
                "Versions and devices",
                table([(name, str(value)) for name, value in ran_on.items() if value is not None]),
            ),
            _details("All versions", others),
        ]
    )


def _details(title: str, text: str) -> Markup:
    return tag("details", tag("summary", title), tag("pre", text)) if text else Markup("")


def _text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
