"""A pipeline's report card: its stages with their time, and each score of each of its runs with its noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.ledger import RunLedger
from lmtrain.report.markup import section, table, tag, tiles, web_page

HEAD: Final = ("stage", "time", "tokens with loss", "work in steps", "dollars", "command")
NOTE: Final = "Behind ± is the standard error over the items scored."
# On a phone a score and its error stay on one line, and the long names of scores leave room for them.
STYLE: Final = ".scores td{min-width:8.5rem}.scores th[scope=row]{min-width:7rem;overflow-wrap:anywhere}"
Scores = Mapping[str, Mapping[str, Any]]  # by name: a `score`, and maybe its `standard_error`, `guess`, `samples`


@dataclass(frozen=True, kw_only=True)
class CardStage:
    """One stage: its command, the seconds of its tries (None: not ended yet), the run it scores, and its scores.

    `was_done`: nothing had changed, and it was skipped this time.
    """

    name: str
    command: str
    seconds: float | None
    run: str
    scores: Scores
    was_done: bool = False
    account: RunLedger | None = None

    @property
    def shown_seconds(self) -> float | None:
        """Return the clock of a training's ledger, of another stage the seconds of its tries."""
        return self.seconds if self.account is None else self.account.time.wall_seconds

    @property
    def cells(self) -> list[str]:
        """Return the stage's row."""
        time = "not yet" if self.shown_seconds is None else format_quantity(self.shown_seconds, "seconds")
        if self.shown_seconds is not None and self.was_done:
            time += ", skipped: unchanged"
        if (account := self.account) is None:
            return [self.name, time, "", "", "", self.command]
        usd = "" if account.usd is None else format_quantity(account.usd, "usd")
        return [self.name, time, format_quantity(account.tokens), f"{account.time.goodput:.0%}", usd, self.command]


@dataclass(frozen=True, kw_only=True)
class Card:
    """All stages of a pipeline."""

    name: str
    stages: Sequence[CardStage]

    @property
    def seconds(self) -> float:
        """Return the seconds of all ended stages."""
        return sum(stage.shown_seconds or 0.0 for stage in self.stages)

    @property
    def runs(self) -> list[str]:
        """Return the scored runs, in the order of their first score."""
        return list(dict.fromkeys(stage.run for stage in self.stages if stage.scores))

    @property
    def totals(self) -> list[tuple[str, str]]:
        """Return the pipeline's time, and dollars if known."""
        accounts = [stage.account for stage in self.stages if stage.account is not None]
        usd = [account.usd for account in accounts if account.usd is not None]
        return [
            ("stages", str(len(self.stages))),
            ("time", format_quantity(self.seconds, "seconds")),
            *([("dollars of the trainings", format_quantity(sum(usd), "usd"))] if usd else []),
        ]

    @property
    def stage_rows(self) -> list[list[str]]:
        """Return the head and a row per stage, without the columns that no stage fills; the command is last."""
        rows = [list(HEAD), *(stage.cells for stage in self.stages)]
        kept = [column for column in range(len(HEAD)) if any(row[column] for row in rows[1:])]
        return [[row[column] for column in kept] for row in rows]

    @property
    def score_rows(self) -> list[list[str]]:
        """Return the head and the scores by run; the commonest answer's score is last, for questions that have one."""
        rows = [["score", *self.runs, "commonest answer"]]
        newest = {(stage.run, name): score for stage in self.stages for name, score in stage.scores.items()}
        for name in dict.fromkeys(name for _, name in newest):
            found = [newest.get((run, name), {}) for run in self.runs]
            guess = next((score["guess"] for score in found if "guess" in score), None)
            shown = "" if guess is None else f"{guess:.1%}"
            rows.append([name, *(shown_score(score) if score else "" for score in found), shown])
        return rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]

    @property
    def sample_rows(self) -> list[list[str]]:
        """Return a head and a row per kind of question: the question, and each run's answer."""
        said = dict[str, dict[str, str]]()
        for stage in self.stages:
            for score in stage.scores.values():
                for sample in score.get("samples", []):
                    said.setdefault(str(sample["asked"]), {})[stage.run] = str(sample["said"])
        runs = [run for run in self.runs if any(run in answers for answers in said.values())]
        return [["asked", *runs], *([asked, *(said[asked].get(run, "") for run in runs)] for asked in said)]


def card_text(card: Card) -> str:
    """Return the card as Markdown."""
    head, *stages = card.stage_rows
    parts = [[f"# {card.name}"], ["; ".join(f"{name}: {value}" for name, value in card.totals)]]
    parts.append(_markdown([head, *([*cells, f"`{command}`"] for *cells, command in stages)]))
    if card.runs:
        parts += [_markdown(card.score_rows), [NOTE]]
    if len(card.sample_rows) > 1:
        parts.append(_markdown(card.sample_rows))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a head and rows as a table of Markdown."""
    written = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    head, *others = [f"| {' | '.join(row)} |" for row in written]
    return [head, f"|{'---|' * len(rows[0])}", *others]


def card_page(card: Card) -> str:
    """Return the card as a page."""
    (*head, _), *stages = card.stage_rows
    rows = table([cells for *cells, _ in stages], head=head)
    parts = [tag("h1", card.name), tiles(card.totals), section("Stages", rows)]
    if card.runs:
        head, *scores = card.score_rows
        parts.append(section("Scores", tag("div", table(scores, head=head), class_="scores"), tag("p", NOTE)))
    if len(card.sample_rows) > 1:
        head, *samples = card.sample_rows
        parts.append(section("What they say", table(samples, head=head)))
    parts.append(section("Commands", tag("pre", "\n".join(f"# {name}\n{command}" for name, *_, command in stages))))
    return web_page(f"{card.name}: a pipeline of lmtrain", *parts, style=STYLE)


def shown_score(score: Mapping[str, Any]) -> str:
    """Return a score with its error; answers in percent, with the share of ended ones if some did not end."""
    pattern = "{:.1%}" if "guess" in score else "{:.4f}"
    error, ended = score.get("standard_error"), score.get("ended", 1.0)
    shown = pattern.format(score["score"]) + (f" ± {pattern.format(error)}" if error is not None else "")
    return shown + (f" ({ended:.0%} ended)" if ended < 1 else "")
