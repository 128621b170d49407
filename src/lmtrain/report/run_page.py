"""report.html: a run's whole record in one file for any browser, on a phone too, without scripts."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, speed_name
from lmtrain.accounting.observed.time_accounts import accounts, kind_words
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.charts import COLOURS, square, time_bars
from lmtrain.report.ledger import RunLedger
from lmtrain.report.ledger_page import fact_rows, kinds_of_time, reasons
from lmtrain.report.markup import Markup, details, joined, section, table, tag, tiles, web_page
from lmtrain.report.report_card import shown_score
from lmtrain.report.run_curves import curve_sections
from lmtrain.report.runs.facts import REPORT_FILE, profile_lines
from lmtrain.report.runs.find import has_status
from lmtrain.report.runs.held_out import AFTER
from lmtrain.tracking.atomic_files import read_json, write_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.scores import all_scores

NAMED_VERSIONS: Final = {"python", "lmtrain", "torch", "lightning", "numpy", "tokenizers", "mlflow"}
MOST_SAMPLES: Final = 8


def write_report(folder: Path) -> Path:
    """Write report.html into a run's folder and return its path."""
    path = folder / REPORT_FILE
    write_text(path, report_page(folder))
    return path


def report_page(folder: Path) -> str:
    """Return the page of a run's folder; unknown facts are left out."""
    if not has_status(folder):
        raise ConfigurationError(f"{folder} is not the folder of a run, as runs/NAME is.")
    run = RunLedger(folder)
    parts = [_header(run), *curve_sections(run)]
    if run.has_accounts:
        parts += [_time(run), _plan(run)]
    if profile := profile_lines(folder):
        parts.append(section("Profile", tag("pre", "\n".join(profile))))
    parts += [_held_out(run), _evaluated(folder)]
    parts += [section("Samples of what it writes", *_samples(run)), _checkpoints(run), _settings(folder)]
    return web_page(f"{run.name}: a run of lmtrain", *parts)


def _header(run: RunLedger) -> Markup:
    shown: list[tuple[str, str]] = []
    if (held_out := run.held_out) is not None:
        when = "" if held_out.after_words == AFTER else f", {held_out.after_words}"
        shown.append((f"bits per byte, held out{when}", f"{held_out.after:.3f}"))
    shown += [("steps", f"{run.step:,}"), ("tokens", format_quantity(run.tokens))]
    if run.fork is not None:
        shown.append((f"of the tokens those of {run.fork.run_words}", format_quantity(run.own.inherited_tokens)))
    if run.tokens_per_second is not None:
        shown.append((speed_name(run.loss_share), format_quantity(round(run.tokens_per_second))))
    if (mfu := run.mfu("palm", "steps")) is not None:
        shown.append(("MFU (PaLM)", f"{mfu:.1%}"))
    if run.has_accounts:
        shown.append(("goodput", f"{run.time.goodput:.1%}"))
        shown.append(("on the clock", format_quantity(run.time.wall_seconds, "seconds")))
        shown += [("cost", format_quantity(run.usd, "usd"))] if run.usd is not None else []
    reason = run.status.reason if run.status else None
    words = [tag("p", run.status_words), *([tag("p", reason)] if reason else [])]
    return tag("header", tag("h1", run.name), *words, tiles(shown))


def _time(run: RunLedger) -> Markup:
    by_attempt = accounts(run.attempts)
    kinds, spent = kinds_of_time(run), run.time
    rows = [
        (
            joined([square(COLOURS[kind]), kind_words(kind)]),
            format_quantity(spent.seconds[kind], "seconds"),
            f"{spent.share(kind):.1%}",
        )
        for kind in kinds
    ]
    total = ("total", format_quantity(spent.wall_seconds, "seconds"), "100.0%")
    many = f"{spent.num_attempts} attempts, one bar each, the oldest first."
    bars = [*([tag("p", many)] if len(by_attempt) > 1 else []), time_bars(by_attempt, kinds=kinds)]
    parts = [tag("div", *bars, class_="bars"), table([*rows, total], numeric=True), table(fact_rows(run))]
    if run.biggest_lever:
        parts.append(tag("p", f"Biggest lever: {run.biggest_lever}"))
    return section("Where the time went", *parts)


def _plan(run: RunLedger) -> Markup:
    found = run.beside_plan
    if found is None:
        return Markup("")
    took = [format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds)]
    rows = [
        ("time on the clock, of all kinds", *took),
        ("MFU (PaLM) of computing", f"{found.planned_mfu:.1%}", f"{found.mfu:.1%}"),
    ]
    listed = table(rows, head=("", f"planned ({found.mfu_source})", "fact"), numeric=True)
    why = reasons(found, trained_share=run.own.trained_share)
    explained = table(why, head=("why", "time", "of the difference"), numeric=True)
    return section("Plan and fact", listed, tag("h3", "The difference, explained"), explained)


def _held_out(run: RunLedger) -> Markup:
    if (held_out := run.held_out) is None:
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


def _samples(run: RunLedger) -> list[Markup]:
    """Return the newest sample, and earlier ones, evenly over the run, folded."""
    rows = [(row.get("step", 0), f"{row.get('prompt', '')}{row.get('text', '')}") for row in run.samples]
    earlier = rows[:-1]
    kept = earlier[:: max(1, math.ceil(len(earlier) / MOST_SAMPLES))]
    newest = [tag("pre", text) for _, text in rows[-1:]]
    return [*newest, *(details(f"at step {step}", text) for step, text in kept)]


def _checkpoints(run: RunLedger) -> Markup:
    rows = [
        (
            f"{facts.step:,}",
            format_quantity(facts.tokens),
            f"{facts.metrics[BITS_PER_BYTE]:.3f}" if BITS_PER_BYTE in facts.metrics else "-",
            str(facts.path),
        )
        for facts in run.checkpoints
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
