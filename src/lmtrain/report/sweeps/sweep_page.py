"""The report of a sweep: its choices side by side, their curves, and every trial with its own report."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from lmtrain.accounting.observed.speed_names import speed_name
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.charts import HEIGHT, Line, plain, plot, square, told_apart
from lmtrain.report.comparing.comparison import Comparison, compare
from lmtrain.report.comparing.comparison_axes import band, comparison_axes
from lmtrain.report.comparing.comparison_chart import ink_of
from lmtrain.report.comparing.comparison_page import (
    TIME,
    difference_head,
    difference_words,
    reach_words,
    target_words,
    verdict_words,
)
from lmtrain.report.comparing.score_decimals import FEWEST
from lmtrain.report.markup import Markup, joined, table, tag
from lmtrain.report.runs.facts import REPORT_FILE, RunFacts, read_run
from lmtrain.report.runs.find import find_runs
from lmtrain.report.runs.shown_state import shown_state
from lmtrain.report.sweeps.parallel_axes import STYLE as PARALLEL_STYLE
from lmtrain.report.sweeps.sweep_trials import sweep_sections
from lmtrain.report.sweeps.trial_words import trained_on
from lmtrain.report.web_page import section, tiles, web_page
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.settled_status import settled_status
from lmtrain.tracking.sweep_file import SweepFile, read_sweep


def write_sweep_report(sweep: Path) -> Path:
    """Write SWEEP.html beside a sweep's folder and return its path.

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
    told = read_sweep(sweep)
    folders = _runs(sweep, told)
    trials = {folder: read_run(folder) for folder in folders}
    statuses = {folder: _state(folder) for folder in folders}
    left_out = {} if told is None else trained_on(told, sweep, trials)
    try:
        found, refusal = compare([folder for folder in folders if folder not in left_out]), ""
    except (ConfigurationError, DataError) as error:
        found, refusal = None, str(error)
    header = [tag("h1", sweep.name), tag("p", _counts(told, statuses)), _tiles(found)]
    told_of = Markup("") if told is None else sweep_sections(told, sweep, trials)
    compared = (
        [tag("p", refusal)]
        if found is None
        else [_curves(found), _finals(found), _reaches(found), _left(found, left_out)]
    )
    decimals = FEWEST if found is None else found.decimals
    listed = _trials(trials, statuses, beside=sweep.parent, decimals=decimals)
    title = f"{sweep.name}: a sweep of lmtrain"
    return web_page(title, tag("header", *header), told_of, *compared, listed, style=PARALLEL_STYLE)


def _state(folder: Path) -> str:
    status = settled_status(folder)
    return shown_state(folder, status).lower() if status else ""


def _runs(sweep: Path, told: SweepFile | None) -> list[Path]:
    """Return the folders of a sweep's runs, none where all its trials were refused."""
    try:
        return find_runs([sweep])
    except ConfigurationError:
        if told is None:
            raise
        return []


def _counts(told: SweepFile | None, statuses: Mapping[Path, str]) -> str:
    states = [*statuses.values()] if told is None else [trial.state.replace("_", " ") for trial in told.trials]
    counts = ", ".join(f"{number} {state}" for state, number in Counter(states).items())
    return f"{format_count(len(states), 'trial')}: {counts}"


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
        shown.append(
            (
                f"of work in steps of the best to reach {found.target:.{found.decimals}f}",
                format_quantity(seconds, "seconds"),
            )
        )
    return tiles(shown)


def _curves(found: Comparison) -> Markup:
    axes = comparison_axes(found.choices)
    drawn = [
        Line(points=choice.mean_curve, colour=colour, dash=dash, band=band(choice))
        for index, choice in enumerate(found.choices)
        for colour, dash in (ink_of(index),)
    ]
    labels = [*zip(axes.labels, told_apart(axes.labels, plain), strict=True)]
    shown = plot(drawn, across=(0.0, axes.most_tokens), up=axes.place(bottom=HEIGHT, top=0.0), up_labels=labels,
                 label=found.curves_title)  # fmt: skip
    note = [tag("p", f"{axes.words.capitalize()}.")] if axes.words else []
    title = "Bits per byte of held-out text, over the tokens trained on"
    return section(title, tag("div", shown, class_="tall"), *note)


def _finals(found: Comparison) -> Markup:
    decimals = found.decimals
    rows = [
        (
            joined([square(ink_of(index)[0]), choice.label]),
            str(choice.final.num),
            f"{choice.final.mean:.{decimals}f}",
            "" if choice.final.standard_deviation is None else f"{choice.final.standard_deviation:.{decimals}f}",
            difference_words(found, choice),
            format_quantity(choice.tokens),
        )
        for index, choice in enumerate(found.choices)
    ]
    head = ("choice", "seeds", "mean", "deviation", difference_head(found), "tokens")
    verdict = [tag("p", f"{words}.") for words in [verdict_words(found)] if words]
    title = "Choices, the best first" if found.is_one_part else "Choices"
    return section(title, table(rows, head=head, numeric=True), *verdict)


def _reaches(found: Comparison) -> Markup:
    if not found.reaches:
        return Markup("")
    rows = [(choice.label, *reach_words(found.reaches[choice.label])) for choice in found.choices]
    head = ("choice", "tokens", "of baseline's", "FLOPs", TIME)
    return section(target_words(found), table(rows, head=head, numeric=True))


def _left(found: Comparison, left_out: Mapping[Path, str]) -> Markup:
    notes = section("Notes", *(tag("p", note) for note in found.notes))
    rows = [*found.left_out.items(), *((path.name, why) for path, why in left_out.items())]
    left = [table(rows, head=("trial", "why"))] if rows else []
    return joined([notes, section("Left out", *left)])


def _trials(trials: Mapping[Path, RunFacts], statuses: Mapping[Path, str], *, beside: Path, decimals: int) -> Markup:
    if not trials:
        return Markup("")
    shared = [word for word in next(iter(trials.values())).overrides
              if all(word in facts.overrides for facts in trials.values())]  # fmt: skip
    rows = [
        _trial(facts, statuses[folder], shared, beside=beside, decimals=decimals) for folder, facts in trials.items()
    ]
    listed = table(rows, head=("run", "status", "step", "bits per byte", "tokens/s", "its own words"))
    same = [tag("h3", "The words of all of them"), tag("pre", " ".join(shared))] if shared else []
    return section("Runs", listed, *same)


def _trial(facts: RunFacts, status: str, shared: Sequence[str], *, beside: Path, decimals: int) -> tuple[str, ...]:
    page = facts.folder / REPORT_FILE
    name = tag("a", facts.name, href=quote(str(page.relative_to(beside)))) if page.exists() else facts.name
    score = "-" if facts.held_out is None else f"{facts.held_out.after:.{decimals}f}"
    speed = "-" if facts.tokens_per_second is None else format_quantity(round(facts.tokens_per_second))
    speed += speed_name(facts.loss_share).removeprefix("tokens/s")
    own = " ".join(word for word in facts.overrides if word not in shared)
    return name, status, f"{facts.step:,}", score, speed, own
