"""Held-out scores of runs: a run's score next to compressors' and its own before training, and which scores compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_BYTES, VALIDATION_TOKENS, averaged
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.sweep_file import ASSISTANT, UNKNOWN, WHOLE, HeldOutText
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT, RunFolder
from lmtrain.tracking.run_log import OF_VALIDATION, Point, held_out_bytes

AFTER: Final = "after training"
MUCH_MORE: Final = 1.01  # times the bytes: two scores are of different parts of a text
COMPRESSORS: Final = {"gzip -9": "gzip_bits_per_byte", "xz -9e": "xz_bits_per_byte"}


@dataclass(frozen=True, kw_only=True)
class HeldOutScore:
    """Bits per byte of a held-out text, before training (if measured) and after.

    `whole_bytes` are those of the split, `num_bytes` those scored: of conversations (`is_assistant`) the assistant's
    words. `read_share` is the part of the split that was read, from its start; None if the run did not note it.
    `references` are compressors' results by name. A run that continued with other data `is_earlier` until it has a
    score of that data's text.
    """

    before: float | None
    after: float
    num_bytes: int
    whole_bytes: int
    context_tokens: int
    references: dict[str, float]
    is_assistant: bool = False
    read_share: float | None = None
    before_num_bytes: int | None = None  # a continued run may read more than it did before training
    before_is_same: bool | None = None  # a score of the same data; None: not noted
    is_earlier: bool = False
    after_averaged: float | None = None  # of the average of the weights
    after_words: str = AFTER  # or "after step N" if the run trained on without a newer score

    @property
    def is_whole(self) -> bool:
        """Report whether the whole text was read, except its first token, which nothing predicts."""
        share = self._share
        return share is not None and share >= WHOLE

    @property
    def before_words(self) -> str:
        """Name the score before training, with its text if the score after it is of another."""
        if self.before_num_bytes in (None, self.num_bytes) or not self.whole_bytes:
            return "before training"
        if self.before_is_same is False:
            return "before training, of another text"
        return f"before training, of {self.before_num_bytes:,} bytes"

    @property
    def part_words(self) -> str:
        """Name the part of the text that the model read, and its bytes."""
        if self.is_earlier:
            return f"the text before the change of data, {self.num_bytes:,} bytes"
        first = f"the first {self._share or 0:.1%}"
        if self.is_assistant:
            of = f"{ASSISTANT}, {self.num_bytes:,} of {self.whole_bytes:,} bytes"
            return of if self._share is None else f"{of}, {'all' if self.is_whole else f'{first} of the'} conversations"
        if not self.is_whole:
            return f"{first}, {self.num_bytes:,} bytes"
        part = "all" if self.num_bytes == self.whole_bytes else "all but the first token"
        return f"{part}, {self.num_bytes:,} bytes"

    def worst_first(self) -> list[tuple[str, float]]:
        """Return the model's scores and the compressors', which always read the whole text.

        Of conversations compressors read the users' turns too, so their results do not compare and are left out.
        """
        part = "" if self.is_whole else ", of all of it"
        scores = {} if self.is_assistant else {f"{name}{part}": score for name, score in self.references.items()}
        if self.before is not None:
            scores[self.before_words] = self.before
        scores[self.after_words] = self.after
        if self.after_averaged is not None:
            scores[f"{self.after_words}, weights averaged"] = self.after_averaged
        return sorted(scores.items(), key=lambda score: -score[1])

    @property
    def _share(self) -> float | None:
        """Return the share of the text that was read: by its bytes, of conversations by its tokens; None: unknown."""
        if self.is_assistant:
            return self.read_share
        of_bytes = self.num_bytes / self.whole_bytes if self.whole_bytes else 1.0
        return self.read_share if self.read_share is not None and self.read_share >= WHOLE else of_bytes


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
    num_bytes = int(last.get(VALIDATION_BYTES, 0))
    behind = {data_behind(folder, point) for point in (measured[0], measured[-1])}
    after = AFTER if step >= last_step else f"after step {step:,}"
    return HeldOutScore(
        before=first[BITS_PER_BYTE] if measured[0].step == 0 < step else None,
        before_num_bytes=int(first.get(VALIDATION_BYTES, num_bytes)),
        before_is_same=None if None in behind else len(behind) == 1,
        is_earlier=is_earlier,
        after=last[BITS_PER_BYTE],
        num_bytes=num_bytes,
        whole_bytes=held_out.get("text_bytes", num_bytes),
        is_assistant=is_assistant(held_out),
        read_share=_read_share(last, held_out),
        context_tokens=plan.get("batch", {}).get("context_tokens", 0),
        references={name: reference[key] for name, key in COMPRESSORS.items() if reference.get(key)},
        after_averaged=last.get(averaged(BITS_PER_BYTE)),
        after_words="before training" if step == 0 else after,
    )


def _read_share(metrics: dict[str, float], split: dict[str, Any]) -> float | None:
    read, whole = metrics.get(VALIDATION_TOKENS), split.get("num_tokens")
    return read / whole if read and whole else None


def data_behind(folder: Path, point: Point) -> str | None:
    """Return the fingerprint of the data that a point's attempt trained on, None if it was not noted."""
    noted = {
        int(each.name): read_json(each / DATA_OF_ATTEMPT).get("fingerprint") for each in RunFolder(folder).attempts()
    }
    found = next(iter(noted.values()), None)
    if any(each != found for each in noted.values()):  # only then are the events read, which may be long
        begun = [attempt.number for attempt in read_attempts(folder) if attempt.started_at <= point.time]
        found = noted.get(begun[-1]) if begun else None
    return None if found is None else str(found)


def is_of_earlier_data(folder: Path, point: Point, dataset: Mapping[str, Any]) -> bool:
    """Report whether a point was measured before the run continued with the data of this dataset.json."""
    behind, now = data_behind(folder, point), dataset.get("fingerprint")
    return None not in (behind, now) and behind != now


def held_out_text(folder: Path, points: Sequence[Point], *, split: str) -> HeldOutText:
    """Return the text of a run's newest score."""
    dataset: dict[str, Any] = read_json(folder / "dataset.json")
    held_out: dict[str, Any] = dataset.get("splits", {}).get(split, {})
    measured = [point for point in points if VALIDATION_BYTES in point.metrics]
    num_bytes = int(measured[-1].metrics[VALIDATION_BYTES]) if measured else 0
    source = str(dataset.get("name", UNKNOWN))
    is_earlier = bool(measured) and is_of_earlier_data(folder, measured[-1], dataset)
    return HeldOutText(
        source=f"{source} before the change of data" if is_earlier else source,
        split_bytes=num_bytes if is_earlier else int(held_out.get("text_bytes", 0)),
        num_bytes=num_bytes,
        tokenizer=str(dataset.get("tokenizer_fingerprint", UNKNOWN)),
        is_assistant=is_assistant(held_out),
    )


def is_assistant(split: Mapping[str, Any]) -> bool:
    """Report whether only the assistant's words have loss in a split of dataset.json."""
    return any(shard.get("mask_sha256") for shard in split.get("shards", ()))


def comparable(points: Sequence[Point]) -> list[Point]:
    """Return the points without validation scores of other bytes than the newest: no line may join the two."""
    newest = next((held_out_bytes(point) for point in reversed(points) if BITS_PER_BYTE in point.metrics), None)

    def kept(point: Point) -> Point:
        if BITS_PER_BYTE not in point.metrics or held_out_bytes(point) == newest:
            return point
        metrics = {name: value for name, value in point.metrics.items() if not name.startswith(OF_VALIDATION)}
        return replace(point, metrics=metrics)

    return [kept(point) for point in points]


def left_out_words(points: Sequence[Point]) -> str | None:
    """Say how many scores `comparable` leaves out, None if none."""
    scored = [held_out_bytes(point) for point in points if BITS_PER_BYTE in point.metrics]
    others = [each for each in dict.fromkeys(scored) if each != scored[-1]]
    counts = [f"{scored.count(each)} of {'other' if each is None else f'{each:,}'} bytes" for each in others]
    return f"Left out, as they do not compare: scores of other held-out text, {', '.join(counts)}." if counts else None


def is_one_part(texts: Iterable[HeldOutText]) -> bool:
    """Report whether scores of one text are of the same part of it: their bytes differ by at most 1%."""
    read = [text.num_bytes for text in texts]
    return not read or max(read) <= MUCH_MORE * min(read)


def why_unranked(texts: Iterable[HeldOutText], *, metric: str) -> str | None:
    """Say why scores of these texts cannot be ranked, None if they can."""
    known = [text for text in texts if text.source != UNKNOWN]
    is_other_text = len({text.text for text in known}) > 1
    if is_other_text or not (metric.startswith("train/") or is_one_part(text for text in known if text.num_bytes)):
        return scores_notes(known)[0]
    if metric != BITS_PER_BYTE and len({text.tokenizer for text in known}) > 1:
        return f"The tokenizers differ, and {metric} is in nats per token, which do not compare between tokenizers."
    return None


def scores_notes(texts: Iterable[HeldOutText]) -> list[str]:
    """Say which scores of these texts do not compare; nothing if all do."""
    known = [text for text in texts if text.source != UNKNOWN]
    named = {text.text: text.words for text in sorted(known, key=lambda text: text.num_bytes)}
    if len(named) > 1:
        listed = ", ".join(named[text] for text in dict.fromkeys(text.text for text in known))
        return [f"The held-out texts differ, and scores of different texts do not compare: {listed}."]
    notes: list[str] = []
    read = [text.num_bytes for text in known]
    if not is_one_part(known):
        notes.append(
            f"Between {min(read):,} and {max(read):,} bytes of the held-out text were read: not the same part of it, "
            "so the scores do not compare."
        )
    if len({text.tokenizer for text in known}) > 1:
        compares = "nats per token do not compare" if notes else "bits per byte compare, nats per token would not"
        notes.append(f"The tokenizers differ: {compares}.")
    return notes
