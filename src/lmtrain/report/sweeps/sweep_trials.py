"""The part of a sweep's page from sweep.json: the best trial, the importance of each key, every trial's end."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.charts import HEIGHT, Line, plain, plot, scale, ticks, told_apart
from lmtrain.report.markup import Markup, joined, table, tag
from lmtrain.report.runs.facts import RunFacts, command
from lmtrain.report.sweeps.parallel_axes import TrialLine, parallel_axes
from lmtrain.report.sweeps.trial_words import noise_words, score_words, trial_decimals
from lmtrain.report.web_page import section
from lmtrain.search.importance import LEAST_TRIALS, NUM_PARTS, Importance, importances
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial

BAR_PIXELS = 10
BAR_WIDTH_PIXELS = 60


def sweep_sections(sweep: SweepFile, folder: Path, facts: Mapping[Path, RunFacts]) -> Markup:
    """Return the sections; `facts` are of the trials' runs in the sweep's folder, by their folders."""
    scored = sweep.finished()
    if sweep.unranked:
        return joined([section("No best", tag("p", sweep.unranked)), _ends(sweep)])
    found = importances([trial.values for trial in scored], [trial.score or 0.0 for trial in scored], space=sweep.space)
    return joined(
        [
            _best(sweep, folder, facts),
            _lines(sweep, order=[*found]),
            _importance(found, num_trials=len(scored)),
            _history(scored, metric=sweep.metric),
            _ends(sweep),
        ]
    )


def _best(sweep: SweepFile, folder: Path, facts: Mapping[Path, RunFacts]) -> Markup:
    best = sweep.best_trial()
    if best is None:
        return Markup("")
    noise = noise_words(sweep.finished())
    score = score_words(best, decimals=trial_decimals(sweep.finished()))
    said = [tag("p", f"{sweep.metric} {score}, {' '.join(best.words)}.")]
    said += [tag("p", f"{noise[0].upper()}{noise[1:]}.")] if noise else []
    runs = best.runs or next((each.runs for each in sweep.trials if each.values == best.values and each.runs), [])
    run = next((facts[path] for each in runs if (path := (folder / each.folder).resolve()) in facts), None)
    typed = [] if run is None else [tag("pre", command(run, "run.name="))]
    return section(f"The best: trial {best.number}", *said, *typed)


def _lines(sweep: SweepFile, *, order: Sequence[str]) -> Markup:
    shown = [
        TrialLine(number=t.number, values=t.values, score=t.score if t.state == "finished" else None)
        for t in sweep.trials
        if t.state not in ("waiting", "running")
    ]
    drawn = parallel_axes(shown, metric=sweep.metric, order=order, space=sweep.space)
    if not drawn:
        return Markup("")
    said = "A line is a trial: blue the best, as below, fainter the worse, dotted without a score at its end."
    return section("Values and score of every trial", tag("p", said), drawn)


def _importance(found: Mapping[str, Importance], *, num_trials: int) -> Markup:
    if not found:
        return Markup("")
    rows = [(key, _bar(each), f"{each.share:.0%}", f"{each.low:.0%} to {each.high:.0%}") for key, each in found.items()]
    said = (
        f"Share of the scores' variance, by Optuna's fANOVA of {num_trials} finished trials; the range is that of "
        f"it and {NUM_PARTS} repeats, each without another fifth of the trials."
    )
    few = " So few trials tell little." if num_trials < 2 * LEAST_TRIALS else ""
    return section(
        "Importance of each key", tag("p", said + few), table(rows, head=("key", "", "share", "range"), numeric=True)
    )


def _bar(each: Importance) -> Markup:
    bar = f"width:{each.share * BAR_WIDTH_PIXELS:.1f}px;min-width:1px;height:{BAR_PIXELS}px;background:var(--line)"
    return tag("div", "", style=bar)


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
    ends = (min(up[0], *values), max(up[-1], *values))
    labels = [*zip(up, told_apart(up, plain), strict=True)]
    name = f"best {metric} so far over trials: {values[-1]:.{trial_decimals(scored)}f} after trial {best[-1][0]:.0f}"
    across = (best[0][0], best[-1][0])
    numbers = [(place, f"{place:.0f}") for place in ticks(*across) if place.is_integer()]
    drawn = plot([Line(points=best)], across=across, up=scale(ends, HEIGHT, 0.0),
                 up_labels=labels, across_labels=numbers, label=name)  # fmt: skip
    return section(f"Best {metric} so far, over the trials' numbers", drawn)


def _ends(sweep: SweepFile) -> Markup:
    by_score = sorted(sweep.trials, key=lambda each: (each.score is None, each.score or 0.0, each.number))
    keys = [*dict.fromkeys(key for trial in sweep.trials for key in trial.values)]
    decimals = trial_decimals(sweep.finished())
    rows = [
        (
            str(trial.number),
            trial.state.replace("_", " "),
            score_words(trial, decimals=decimals),
            *(trial.values.get(key, "") for key in keys),
            format_quantity(round(trial.seconds, 1), "seconds"),
            trial.reason or "",
        )
        for trial in (sweep.trials if sweep.unranked else by_score)
    ]
    head = ("trial", "state", sweep.metric, *keys, "time", "reason")
    return section("Trials" if sweep.unranked else "Trials, the best first", table(rows, head=head))
