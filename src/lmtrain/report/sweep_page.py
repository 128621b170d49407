"""The page of a sweep: its best trial, its choices side by side, and every run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.charts import ink_of, plot, square
from lmtrain.report.comparison import Comparison, compare
from lmtrain.report.comparison_page import (
    FINALS_HEAD,
    REACHES_HEAD,
    curves,
    curves_title,
    curves_top,
    finals_rows,
    reaches_rows,
    target_words,
    verdict_words,
)
from lmtrain.report.markup import Markup, joined, section, table, tag, web_page
from lmtrain.report.runs.facts import REPORT_FILE, RunRecord
from lmtrain.report.runs.find import find_runs
from lmtrain.report.spread import lead_words
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial, read_sweep


def write_sweep_report(sweep: Path) -> Path:
    """Write SWEEP.html next to a sweep's folder and return its path."""
    path = sweep.with_name(f"{sweep.name}.html")
    write_text(path, sweep_page(sweep))
    return path


def sweep_page(sweep: Path) -> str:
    """Return the page of runs/sweep-ID, also while it runs."""
    book = read_sweep(sweep)
    try:
        runs = {folder: RunRecord(folder) for folder in find_runs([sweep])}
    except ConfigurationError:
        if book is None:
            raise
        runs = {}  # all its trials were refused
    try:
        found, refusal = compare([*runs]), ""
    except (ConfigurationError, DataError) as error:
        found, refusal = None, str(error)
    states = [run.shown_status.lower() for run in runs.values()]
    counted = states if book is None else [trial.state.replace("_", " ") for trial in book.trials]
    counts = ", ".join(f"{number} {state}" for state, number in Counter(counted).items())
    header = [tag("h1", sweep.name), tag("p", f"{format_count(len(counted), 'trial')}: {counts}")]
    compared = [tag("p", refusal)] if found is None else [_curves(found), _tables(found), _notes(found)]
    return web_page(
        f"{sweep.name}: a sweep of lmtrain",
        tag("header", *header),
        Markup("") if book is None else sweep_sections(book),
        *compared,
        _runs(runs, root=sweep.parent),
    )


def score_words(trial: SweepTrial) -> str:
    """Write a trial's score, with the deviation of repeated seeds."""
    if trial.score is None:
        return "-"
    spread = "" if trial.deviation is None else f", deviation {trial.deviation:.4f} of {len(trial.runs)} seeds"
    return f"{trial.score:.4f}{spread}"


def noise_words(best_first: Sequence[SweepTrial]) -> str | None:
    """Say whether the best trial's lead is more than noise, None without repeated seeds."""
    if len(best_first) < 2 or best_first[0].deviation is None:
        return None
    best, other = best_first[:2]
    of, against = ({str(run.seed): run.score for run in trial.runs if run.score is not None} for trial in (best, other))
    return lead_words(f"trial {best.number}", of, f"trial {other.number}", against) if of and against else None


def sweep_sections(book: SweepFile) -> Markup:
    """Return what sweep.json has: the best trial, and each trial's end."""
    if book.unranked:
        return joined([section("No best", tag("p", book.unranked)), _ends(book)])
    return joined([_best(book), _ends(book)])


def _best(book: SweepFile) -> Markup:
    best, scored = book.best_trial(), book.finished()
    if best is None:
        return Markup("")
    parts = [tag("p", f"{book.metric} {score_words(best)}, {' '.join(best.words)}.")]
    if noise := noise_words(scored):
        parts.append(tag("p", f"{noise[0].upper()}{noise[1:]}."))
    return section(f"The best: trial {best.number}", *parts)


def _ends(book: SweepFile) -> Markup:
    by_score = sorted(book.trials, key=lambda each: (each.score is None, each.score or 0.0, each.number))
    keys = [*dict.fromkeys(key for trial in book.trials for key in trial.values)]
    rows = [
        (
            str(trial.number),
            trial.state.replace("_", " "),
            score_words(trial),
            *(trial.values.get(key, "") for key in keys),
            format_quantity(round(trial.seconds, 1), "seconds"),
            trial.reason or "",
        )
        for trial in (book.trials if book.unranked else by_score)
    ]
    head = ("trial", "state", book.metric, *keys, "time", "reason")
    return section("Trials" if book.unranked else "Trials, the best first", table(rows, head=head))


def _curves(found: Comparison) -> Markup:
    shown = plot(curves(found), label=curves_title(found), top=curves_top(found))
    return section("Bits per byte of held-out text, over the tokens trained on", tag("div", shown, class_="tall"))


def _tables(found: Comparison) -> Markup:
    rows = [
        (joined([square(ink_of(index)[0]), label]), *others)
        for index, (label, *others) in enumerate(finals_rows(found))
    ]
    verdict = [tag("p", f"{words}.") for words in [verdict_words(found)] if words]
    finals = section("Choices, the best first", table(rows, head=FINALS_HEAD, numeric=True), *verdict)
    reached = table(reaches_rows(found), head=REACHES_HEAD, numeric=True)
    return joined([finals, section(target_words(found), reached)])


def _notes(found: Comparison) -> Markup:
    notes = section("Notes", *(tag("p", note) for note in found.notes))
    rows = [*found.left_out.items()]
    return joined([notes, section("Left out", *([table(rows, head=("trial", "why"))] if rows else []))])


def _runs(runs: Mapping[Path, RunRecord], *, root: Path) -> Markup:
    """List all runs with a link to their own pages, and the overrides that only they have."""
    if not runs:
        return Markup("")
    shared = set.intersection(*(set(run.overrides) for run in runs.values()))

    def row(run: RunRecord) -> tuple[str, ...]:
        page = run.folder / REPORT_FILE
        return (
            tag("a", run.name, href=quote(str(page.relative_to(root)))) if page.exists() else run.name,
            run.shown_status.lower(),
            f"{run.step:,}",
            "-" if run.held_out is None else f"{run.held_out.after:.4f}",
            "-" if run.tokens_per_second is None else format_quantity(round(run.tokens_per_second)),
            " ".join(word for word in run.overrides if word not in shared),
        )

    head = ("run", "status", "step", "bits per byte", "tokens/s", "its own overrides")
    return section("Runs", table([row(run) for run in runs.values()], head=head))
