"""A run's score of held-out text, beside the one before training and general compressors'."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_BYTES, VALIDATION_TOKENS, averaged
from lmtrain.report.runs.held_out_text import is_assistant
from lmtrain.report.runs.scored_data import data_behind, is_of_earlier_data
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.held_out_text import ASSISTANT, WHOLE
from lmtrain.tracking.run_log import Point

RESULT: Final = "after training"


@dataclass(frozen=True, kw_only=True)
class HeldOutScore:
    """Bits per byte of a held-out text, before training (where measured) and after.

    `whole_bytes` are of the whole split, `num_bytes` those scored: of conversations (`is_assistant`) the assistant's
    words. `read_share` is the part of the split read, from its start; None of a run that did not note it.
    `references` are compressors' results by name. A run gone on with other data is `is_earlier` until its first score
    of that data's text.
    """

    before: float | None
    after: float
    num_bytes: int
    whole_bytes: int
    context_tokens: int
    references: dict[str, float]
    is_assistant: bool = False
    read_share: float | None = None
    before_num_bytes: int | None = None  # of an extended run: a longer one reads more
    before_read_share: float | None = None
    before_is_same: bool | None = None  # a score of the same data; None: nobody noted it
    is_earlier: bool = False
    after_averaged: float | None = None  # of the average of the weights
    after_words: str = RESULT  # or after the step of a run that trained on without a newer score

    @property
    def is_whole(self) -> bool:
        """Tell whether the whole text was read, but for its first token, predicted by nothing."""
        share = self._part(self.num_bytes, self.read_share)
        return share is not None and share >= WHOLE

    @property
    def before_words(self) -> str:
        """Name the score before training, with its text or part of it where the one after is of another."""
        if self.before_num_bytes in (None, self.num_bytes) or not self.whole_bytes:
            return "before training"
        if self.before_is_same is False:
            return "before training, of another text"
        share = self._part(self.before_num_bytes, self.before_read_share)
        if share is None or self.is_earlier or not self.before_is_same:
            return f"before training, of {self.before_num_bytes:,} bytes"
        return f"before training, of {'all of it' if share >= WHOLE else self._first(self.before_num_bytes, share)}"

    @property
    def part_words(self) -> str:
        """Name the part read by the model, and its bytes."""
        if self.is_earlier:
            return f"the text before the change of data, {self.num_bytes:,} bytes"
        share = self._part(self.num_bytes, self.read_share)
        if self.is_assistant:
            of = f"{ASSISTANT}, {self.num_bytes:,} of {self.whole_bytes:,} bytes"
            part = "all" if self.is_whole else f"{self._first(self.num_bytes, share)} of the"
            return of if share is None else f"{of}, {part} conversations"
        if not self.is_whole:
            return f"{self._first(self.num_bytes, share)}, {self.num_bytes:,} bytes"
        part = "all" if self.num_bytes == self.whole_bytes else "all but the first token"
        return f"{part}, {self.num_bytes:,} bytes"

    def worst_first(self) -> list[tuple[str, float]]:
        """Return the model with its scores, and compressors, which always read the whole text.

        Of conversations they read the users' turns too, without a score to set beside the model's.
        """
        of_what = "" if self.is_whole else ", of all of it"
        references = {} if self.is_assistant else self.references
        scores = {f"{name}{of_what}": score for name, score in references.items()}
        if self.before is not None:
            scores[self.before_words] = self.before
        scores[self.after_words] = self.after
        if self.after_averaged is not None:
            scores[f"{self.after_words}, weights averaged"] = self.after_averaged
        return sorted(scores.items(), key=lambda score: -score[1])

    def _first(self, num_bytes: int | None, read_share: float | None) -> str:
        """Name the part read by its share of the bytes, of conversations of the tokens: its bytes leave words out."""
        share = read_share if self.is_assistant or not self.whole_bytes else (num_bytes or 0) / self.whole_bytes
        return f"the first {share or 0:.1%}"

    def _part(self, num_bytes: int | None, read_share: float | None) -> float | None:
        """Return the share of the text read, by its bytes where a run did not note its tokens; None: unknown."""
        if read_share is not None or self.is_assistant:
            return read_share
        return (num_bytes or 0) / self.whole_bytes if self.whole_bytes else 1.0


def held_out_score(
    points: Sequence[Point], plan: dict[str, Any], folder: Path, *, split: str, last_step: int
) -> HeldOutScore | None:
    """Return a run's newest score, None before one."""
    measured = [point for point in points if BITS_PER_BYTE in point.metrics]
    if not measured:
        return None
    first, last, step = measured[0].metrics, measured[-1].metrics, measured[-1].step
    dataset: dict[str, Any] = read_json(folder / "dataset.json")
    is_earlier = is_of_earlier_data(folder, measured[-1], dataset)
    dataset = {} if is_earlier else dataset
    held_out: dict[str, Any] = dataset.get("splits", {}).get(split, {})
    reference = dataset.get("references", {}).get(split, {})
    names = {"gzip -9": "gzip_bits_per_byte", "xz -9e": "xz_bits_per_byte"}
    num_bytes = int(last.get(VALIDATION_BYTES, 0))
    return HeldOutScore(
        before=first[BITS_PER_BYTE] if measured[0].step == 0 < step else None,
        before_num_bytes=int(first.get(VALIDATION_BYTES, num_bytes)),
        before_read_share=_read_share(first, held_out),
        before_is_same=_are_of_same_data(folder, measured[0], measured[-1]),
        is_earlier=is_earlier,
        after=last[BITS_PER_BYTE],
        num_bytes=num_bytes,
        whole_bytes=held_out.get("text_bytes", num_bytes),
        is_assistant=is_assistant(held_out),
        read_share=_read_share(last, held_out),
        context_tokens=plan.get("batch", {}).get("context_tokens", 0),
        references={name: reference[key] for name, key in names.items() if reference.get(key)},
        after_averaged=last.get(averaged(BITS_PER_BYTE)),
        after_words="before training" if step == 0 else _after(step, last_step=last_step),
    )


def _are_of_same_data(folder: Path, *points: Point) -> bool | None:
    known = {data_behind(folder, point) for point in points}
    return None if None in known else len(known) == 1


def _read_share(metrics: dict[str, float], split: dict[str, Any]) -> float | None:
    read, whole = metrics.get(VALIDATION_TOKENS), split.get("num_tokens")
    return read / whole if read and whole else None


def _after(step: int, *, last_step: int) -> str:
    return RESULT if step >= last_step else f"after step {step:,}"
