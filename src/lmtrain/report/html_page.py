"""report.html: everything a run's folder says, in one file that any browser shows, a phone's too, with no script."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.ledger import COMPUTE, accounts
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.charts import line_chart, swatch, time_bars
from lmtrain.report.ledger import RunLedger, read_attempts, read_ledger
from lmtrain.report.ledger_page import reasons
from lmtrain.report.markup import Markup, joined, table, tag
from lmtrain.report.run_facts import BITS_PER_BYTE, REPORT_FILE, HeldOutScore, RunFacts, read_run
from lmtrain.tracking.atomic_files import read_json, write_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, read_points
from lmtrain.training.checkpointing.checkpoints import list_checkpoints

CURVES: Final = {
    "train/loss": "Training loss, nats per token",
    BITS_PER_BYTE: "Held-out text, bits per byte",
    "speed/tokens_per_second": "Tokens per second",
}
NAMED_VERSIONS: Final = {"python", "lmtrain", "torch", "lightning", "numpy", "tokenizers", "mlflow"}
STYLE: Final = """
:root{color-scheme:light dark;--page:#fcfcfb;--ink:#0b0b0b;--dim:#52514e;--rule:#e1e0d9;--line:#2a78d6}
@media(prefers-color-scheme:dark){:root{--page:#1a1a19;--ink:#fff;--dim:#c3c2b7;--rule:#383835;--line:#3987e5}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:960px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0 0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2rem 0 .5rem}
h3{font-size:.9rem;font-weight:600;color:var(--dim);margin:.5rem 0}p{margin:.25rem 0;color:var(--dim)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin-top:1rem}
.tile b{display:block;font-size:1.35rem;font-weight:600;line-height:1.2}.tile span{color:var(--dim);font-size:.85rem}
svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--dim)}.bars svg{margin-bottom:12px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--rule);font-weight:400;vertical-align:top}
th[scope=row]{color:var(--dim)}th[scope=col]{font-weight:600}
.numeric td,.numeric th[scope=col]:not(:first-child){text-align:right;font-variant-numeric:tabular-nums}
.swatch{display:inline-block;width:.75em;height:.75em;margin-right:.5em;border-radius:2px}
pre{overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;padding:12px;border:1px solid var(--rule);
font:.85rem/1.5 ui-monospace,monospace;margin:0}
details{margin-top:.75rem}summary{cursor:pointer;color:var(--dim)}
"""


def write_report(folder: Path) -> Path:
    """Write report.html into a run's folder and return its path.

    Raises:
        ConfigurationError: The folder holds no run.
    """
    path = folder / REPORT_FILE
    write_text(path, report_page(folder))
    return path


def report_page(folder: Path) -> str:
    """Return the page of a run's folder; what is not known is left out."""
    ledger, facts = known_ledger(folder), read_run(folder)
    points = list(read_points(folder / "metrics.jsonl")) if (folder / "metrics.jsonl").exists() else []
    sections = [
        _header(facts, ledger),
        _curves(points),
        *([] if ledger is None else [_time(folder, ledger), _plan(ledger)]),
        _held_out(facts.held_out),
        _section("A sample of what it writes", *_sample(facts)),
        _checkpoints(folder),
        _settings(folder),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("title", f"{facts.name}: a run of lmtrain"),
        tag("style", Markup(STYLE)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *sections), lang='en')}\n"


def known_ledger(folder: Path) -> RunLedger | None:
    """Return a run's accounts, None for a run that kept none.

    Raises:
        ConfigurationError: The folder holds no run.
    """
    try:
        return read_ledger(folder)
    except ConfigurationError:
        if not (folder / "status.json").exists():
            raise
        return None


def _section(title: str, *parts: str) -> Markup:
    return tag("section", tag("h2", title), *parts) if any(parts) else Markup("")


def _header(facts: RunFacts, ledger: RunLedger | None) -> Markup:
    tiles = [("steps", f"{facts.step:,}"), ("tokens", format_quantity(ledger.tokens if ledger else facts.tokens))]
    if facts.held_out is not None:
        tiles.append(("bits per byte, held out", f"{facts.held_out.after:.3f}"))
    if facts.tokens_per_second is not None:
        tiles.append(("tokens/s", format_quantity(round(facts.tokens_per_second))))
    if facts.mfu_palm is not None:
        tiles.append(("MFU (PaLM)", f"{facts.mfu_palm:.1%}"))
    if ledger is not None:
        tiles.append(("goodput", f"{ledger.time.goodput:.1%}"))
        tiles.append(("on the clock", format_quantity(ledger.time.wall_seconds, "seconds")))
        if ledger.usd is not None:
            tiles.append(("cost", f"${ledger.usd:,.2f}"))
        if ledger.kwh is not None:
            tiles.append(("kWh at rated power", f"{ledger.kwh:,.3g}"))
    shown = [tag("div", tag("b", value), tag("span", name), class_="tile") for name, value in tiles]
    status = "" if ledger is None else f"{ledger.status.lower()} at step {ledger.step:,} of {ledger.num_steps:,}"
    return tag("header", tag("h1", facts.name), tag("p", status), tag("div", *shown, class_="tiles"))


def _curves(points: Sequence[Point]) -> Markup:
    drawn: list[Markup] = []
    for metric, name in CURVES.items():
        curve = [(float(point.step), point.metrics[metric]) for point in points if metric in point.metrics]
        show = format_quantity if metric.startswith("speed/") else "{:.4g}".format
        if chart := line_chart(curve, name=name, show=show):
            drawn.append(tag("div", tag("h3", name), chart))
    return _section("Curves over optimizer steps", *([tag("div", *drawn, class_="grid")] if drawn else []))


def _time(folder: Path, ledger: RunLedger) -> Markup:
    by_attempt = accounts(read_attempts(folder, is_running=ledger.status == "RUNNING"))
    kinds = sorted(ledger.time.seconds, key=lambda kind: (kind != COMPUTE, -ledger.time.seconds[kind]))
    rows: list[tuple[str, str, str]] = [
        (swatch(kind), format_quantity(ledger.time.seconds[kind], "seconds"), f"{ledger.time.share(kind):.1%}")
        for kind in kinds
    ]
    rows.append(("total", format_quantity(ledger.time.wall_seconds, "seconds"), "100.0%"))
    said = [f"{ledger.time.num_attempts} attempts, one bar each, the oldest first."]
    lever = [tag("p", f"Biggest lever: {ledger.time.biggest_lever}")] if ledger.time.biggest_lever else []
    shown = tag("div", *([tag("p", *said)] if len(by_attempt) > 1 else []), time_bars(by_attempt), class_="bars")
    return _section("Where the time went", shown, table(rows, numeric=True), *lever)


def _plan(ledger: RunLedger) -> Markup:
    found = ledger.beside_plan
    if found is None:
        return Markup("")
    took = [format_quantity(seconds, "seconds") for seconds in (found.planned_seconds, found.seconds)]
    rows = [
        ("time of the steps done", *took),
        ("MFU (PaLM) of computing", f"{found.planned_mfu:.1%}", f"{found.mfu:.1%}"),
    ]
    beside = table(rows, head=("", f"planned ({found.mfu_source})", "fact"), numeric=True)
    why = table(reasons(found), head=("why", "time", "of the difference"), numeric=True)
    return _section("Plan beside fact", beside, tag("h3", "The difference, explained"), why)


def _held_out(held_out: HeldOutScore | None) -> Markup:
    if held_out is None:
        return Markup("")
    scores = dict(held_out.references)
    if held_out.before is not None:
        scores["before training"] = held_out.before
    scores["after training"] = held_out.after
    if held_out.after_averaged is not None:
        scores["after training, weights averaged"] = held_out.after_averaged
    rows = [(name, f"{score:.3f}") for name, score in sorted(scores.items(), key=lambda score: -score[1])]
    part = "all of it" if held_out.is_whole else f"the first {held_out.num_bytes / held_out.whole_bytes:.1%} of it"
    how = f"Bits per byte; the model read {part}, {held_out.num_bytes:,} bytes, in windows of {held_out.context_tokens}"
    return _section("Held-out text", tag("p", f"{how} tokens."), table(rows, numeric=True))


def _sample(facts: RunFacts) -> list[Markup]:
    text = f"{facts.sample.get('prompt', '')}{facts.sample.get('text', '')}"
    return [tag("pre", text)] if text else []


def _checkpoints(folder: Path) -> Markup:
    rows = [
        (f"{facts.step:,}", format_quantity(facts.tokens), _score(facts.metrics), str(facts.path))
        for facts in list_checkpoints(folder / "checkpoints")
    ]
    return _section("Checkpoints", *([table(rows, head=("step", "tokens", "bits per byte", "where"))] if rows else []))


def _score(metrics: dict[str, float]) -> str:
    return f"{metrics[BITS_PER_BYTE]:.3f}" if BITS_PER_BYTE in metrics else "-"


def _settings(folder: Path) -> Markup:
    """Show what the command line changed, the whole config, versions and devices of the newest attempt."""
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
            _section("Changed from the defaults", tag("pre", changed)),
            _details("The whole config", _text(newest / "config.yaml")),
            _section("Versions and devices", table([(name, str(value)) for name, value in ran_on.items()])),
            _details("All versions", others),
        ]
    )


def _details(title: str, text: str) -> Markup:
    return tag("details", tag("summary", title), tag("pre", text)) if text else Markup("")


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
