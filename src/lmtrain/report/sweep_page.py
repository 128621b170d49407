"""The page of a sweep: its best trial, its choices side by side, and every run."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, speed_name
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.charts import HEIGHT, Line, distinct_labels, plain, plot, scale, square, ticks
from lmtrain.report.comparison import Comparison, compare
from lmtrain.report.comparison_page import (
    REACHES_HEAD,
    comparison_axes,
    curves_title,
    finals_head,
    finals_rows,
    ink_of,
    reaches_rows,
    target_words,
    verdict_words,
)
from lmtrain.report.markup import Markup, joined, section, table, tag, tiles, web_page
from lmtrain.report.parallel_axes import STYLE, TrialLine, parallel_axes
from lmtrain.report.runs.facts import REPORT_FILE, RunFacts, command, read_run, shown_state
from lmtrain.report.runs.find import find_runs
from lmtrain.report.spread import FEWEST_DECIMALS, difference, score_decimals
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.status import settled_status
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial, read_sweep


def write_sweep_report(sweep: Path) -> Path:
    """Write SWEEP.html next to a sweep's folder and return its path.

    Raises:
        ConfigurationError: No run is of this sweep.
        DataError: The sweep is of another version.
    """
    path = sweep.with_name(f"{sweep.name}.html")
    write_text(path, sweep_page(sweep))
    return path


def sweep_page(sweep: Path) -> str:
    """Return the page of runs/sweep-ID, also while it runs.

    Raises:
        ConfigurationError: No run is of this sweep.
    """
    book = read_sweep(sweep)
    try:
        folders = find_runs([sweep])
    except ConfigurationError:
        if book is None:
            raise
        folders = []  # all its trials were refused
    runs = {folder: read_run(folder) for folder in folders}
    states = {folder: shown_state(folder, status).lower() if (status := settled_status(folder)) else ""
              for folder in folders}  # fmt: skip
    left_out = {} if book is None else trained_on(book, sweep, runs)
    try:
        found, refusal = compare([folder for folder in folders if folder not in left_out]), ""
    except (ConfigurationError, DataError) as error:
        found, refusal = None, str(error)
    counted = [*states.values()] if book is None else [trial.state.replace("_", " ") for trial in book.trials]
    counts = ", ".join(f"{number} {state}" for state, number in Counter(counted).items())
    header = [tag("h1", sweep.name), tag("p", f"{format_count(len(counted), 'trial')}: {counts}"), _tiles(found)]
    compared = [tag("p", refusal)] if found is None else [_curves(found), _tables(found), _notes(found, left_out)]
    decimals = FEWEST_DECIMALS if found is None else found.decimals
    return web_page(
        f"{sweep.name}: a sweep of lmtrain",
        tag("header", *header),
        Markup("") if book is None else sweep_sections(book, sweep, runs),
        *compared,
        _runs(runs, states, root=sweep.parent, decimals=decimals),
        style=STYLE,
    )


def trained_on(book: SweepFile, sweep: Path, runs: Mapping[Path, RunFacts]) -> dict[Path, str]:
    """Return the runs whose score has changed since the search, with both scores: they trained on after it."""
    if book.metric != BITS_PER_BYTE:
        return {}
    scores = {(sweep / run.folder).resolve(): run.score for trial in book.trials for run in trial.runs if run.score}
    now = {path: facts.held_out.after for path, facts in runs.items() if facts.held_out}
    return {
        path: f"trained on after the search, to {now[path]:.4f}; {score:.4f} is its trial's score"
        for path, score in scores.items()
        if path in now and not math.isclose(now[path], score)
    }


def trial_decimals(trials: Sequence[SweepTrial]) -> int:
    """Return the decimals of the trials' scores."""
    return score_decimals(trial.score for trial in trials if trial.score is not None)


def score_words(trial: SweepTrial, *, decimals: int) -> str:
    """Return a trial's score, with its deviation over several seeds."""
    if trial.score is None:
        return "-"
    spread = "" if trial.deviation is None else f", deviation {trial.deviation:.{decimals}f} of {len(trial.runs)} seeds"
    return f"{trial.score:.{decimals}f}{spread}"


def noise_words(best_first: Sequence[SweepTrial]) -> str | None:
    """Say whether the best trial's lead is more than noise, None without repeated seeds."""
    if len(best_first) < 2 or best_first[0].deviation is None:
        return None
    best, other = best_first[0], next((each for each in best_first[1:] if each.runs), None)
    if other is None:
        return None
    of, against = ({str(run.seed): run.score for run in trial.runs if run.score is not None} for trial in (other, best))
    found = difference(of, against)
    if found.plus_minus is None:
        return None
    decimals = trial_decimals(best_first)
    lead = f"{found.mean:.{decimals}f} ± {found.plus_minus:.{decimals}f} (95%)"
    verdict = "within noise" if found.is_noise else "more than noise"
    return f"trial {best.number} is {lead} better than trial {other.number}: {verdict}"


def sweep_sections(book: SweepFile, folder: Path, runs: Mapping[Path, RunFacts]) -> Markup:
    """Return what sweep.json has: the best trial, all values, and each trial's end."""
    if book.unranked:
        return joined([section("No best", tag("p", book.unranked)), _ends(book)])
    scored = book.finished()
    lines = [
        TrialLine(number=t.number, values=t.values, score=t.score if t.state == "finished" else None)
        for t in book.trials
        if t.state not in ("waiting", "running")
    ]
    drawn = parallel_axes(lines, metric=book.metric, space=book.space)
    words = "A line is a trial: blue the best, as below, fainter the worse, dotted without a score at its end."
    return joined(
        [
            _best(book, folder, runs),
            section("Values and score of every trial", tag("p", words), drawn) if drawn else Markup(""),
            _history(scored, metric=book.metric),
            _ends(book),
        ]
    )


def _best(book: SweepFile, folder: Path, runs: Mapping[Path, RunFacts]) -> Markup:
    best, scored = book.best_trial(), book.finished()
    if best is None:
        return Markup("")
    parts = [tag("p", f"{book.metric} {score_words(best, decimals=trial_decimals(scored))}, {' '.join(best.words)}.")]
    if noise := noise_words(scored):
        parts.append(tag("p", f"{noise[0].upper()}{noise[1:]}."))
    of_best = best.runs or next((each.runs for each in book.trials if each.values == best.values and each.runs), [])
    facts = next((runs[path] for each in of_best if (path := (folder / each.folder).resolve()) in runs), None)
    if facts is not None:
        parts.append(tag("pre", command(facts, "run.name=")))
    return section(f"The best: trial {best.number}", *parts)


def _history(scored: Sequence[SweepTrial], *, metric: str) -> Markup:
    """Draw the best score so far over the trials."""
    if len(scored) < 2:
        return Markup("")
    best: list[tuple[float, float]] = []
    for trial in sorted(scored, key=lambda each: each.number):
        before = best[-1][1] if best else float("inf")
        best += [(float(trial.number), before)] if best else []
        best.append((float(trial.number), min(before, trial.score or 0.0)))
    values = [value for _, value in best]
    up = ticks(min(values), max(values))
    labels = [*zip(up, distinct_labels(up, plain), strict=True)]
    across = (best[0][0], best[-1][0])
    numbers = [(place, f"{place:.0f}") for place in ticks(*across) if place.is_integer()]
    name = f"best {metric} so far over trials: {values[-1]:.{trial_decimals(scored)}f} after trial {across[1]:.0f}"
    up_place = scale((min(up[0], *values), max(up[-1], *values)), HEIGHT, 0.0)
    drawn = plot([Line(points=best)], across=across, up=up_place, up_labels=labels, across_labels=numbers, label=name)
    return section(f"Best {metric} so far, over the trials' numbers", drawn)


def _ends(book: SweepFile) -> Markup:
    by_score = sorted(book.trials, key=lambda each: (each.score is None, each.score or 0.0, each.number))
    keys = [*dict.fromkeys(key for trial in book.trials for key in trial.values)]
    decimals = trial_decimals(book.finished())
    rows = [
        (
            str(trial.number),
            trial.state.replace("_", " "),
            score_words(trial, decimals=decimals),
            *(trial.values.get(key, "") for key in keys),
            format_quantity(round(trial.seconds, 1), "seconds"),
            trial.reason or "",
        )
        for trial in (book.trials if book.unranked else by_score)
    ]
    head = ("trial", "state", book.metric, *keys, "time", "reason")
    return section("Trials" if book.unranked else "Trials, the best first", table(rows, head=head))


def _tiles(found: Comparison | None) -> Markup:
    if found is None or not found.is_one_part:
        return Markup("")
    best = found.choices[0]
    seconds = found.reaches[best.label].seconds
    shown = [
        (f"bits per byte of the best: {best.label}", f"{best.final.mean:.{found.decimals}f}"),
        ("choice" if len(found.choices) == 1 else "choices", str(len(found.choices))),
        ("seed of the best" if best.final.num == 1 else "seeds of the best", str(best.final.num)),
    ]
    if seconds is not None:
        name = f"of work in steps of the best to reach {found.target:.{found.decimals}f}"
        shown.append((name, format_quantity(seconds, "seconds")))
    return tiles(shown)


def _curves(found: Comparison) -> Markup:
    axes = comparison_axes(found.choices)
    inks = [ink_of(index) for index in range(len(found.choices))]
    drawn = [
        Line(points=choice.mean_curve, colour=colour, dash=dash, band=choice.band)
        for choice, (colour, dash) in zip(found.choices, inks, strict=True)
    ]
    labels = [*zip(axes.labels, distinct_labels(axes.labels, plain), strict=True)]
    shown = plot(drawn, across=(0.0, axes.most_tokens), up=axes.place(bottom=HEIGHT, top=0.0), up_labels=labels,
                 label=curves_title(found))  # fmt: skip
    note = [tag("p", f"{axes.words.capitalize()}.")] if axes.words else []
    title = "Bits per byte of held-out text, over the tokens trained on"
    return section(title, tag("div", shown, class_="tall"), *note)


def _tables(found: Comparison) -> Markup:
    rows = [
        (joined([square(ink_of(index)[0]), label]), *others)
        for index, (label, *others) in enumerate(finals_rows(found))
    ]
    verdict = [tag("p", f"{words}.") for words in [verdict_words(found)] if words]
    title = "Choices, the best first" if found.is_one_part else "Choices"
    finals = section(title, table(rows, head=finals_head(found), numeric=True), *verdict)
    if not found.reaches:
        return finals
    reached = table(reaches_rows(found), head=REACHES_HEAD, numeric=True)
    return joined([finals, section(target_words(found), reached)])


def _notes(found: Comparison, left_out: Mapping[Path, str]) -> Markup:
    notes = section("Notes", *(tag("p", note) for note in found.notes))
    rows = [*found.left_out.items(), *((path.name, why) for path, why in left_out.items())]
    return joined([notes, section("Left out", *([table(rows, head=("trial", "why"))] if rows else []))])


def _runs(runs: Mapping[Path, RunFacts], states: Mapping[Path, str], *, root: Path, decimals: int) -> Markup:
    """List all runs with a link to their own pages, and the overrides that only they have."""
    if not runs:
        return Markup("")
    first = next(iter(runs.values()))
    shared = [word for word in first.overrides if all(word in facts.overrides for facts in runs.values())]

    def row(facts: RunFacts) -> tuple[str, ...]:
        page = facts.folder / REPORT_FILE
        name = tag("a", facts.name, href=quote(str(page.relative_to(root)))) if page.exists() else facts.name
        speed = "-" if facts.tokens_per_second is None else format_quantity(round(facts.tokens_per_second))
        return (
            name,
            states[facts.folder],
            f"{facts.step:,}",
            "-" if facts.held_out is None else f"{facts.held_out.after:.{decimals}f}",
            speed + speed_name(facts.loss_share).removeprefix("tokens/s"),
            " ".join(word for word in facts.overrides if word not in shared),
        )

    head = ("run", "status", "step", "bits per byte", "tokens/s", "its own overrides")
    same = [tag("h3", "Overrides of all runs"), tag("pre", " ".join(shared))] if shared else []
    return section("Runs", table([row(facts) for facts in runs.values()], head=head), *same)
