"""Held-out scores of runs: a run's score next to compressors' and its own before training, and which scores compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_BYTES, averaged
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_log import OF_VALIDATION, Point, held_out_bytes, newest_point
from lmtrain.tracking.sweep_file import UNKNOWN, WHOLE, HeldOutText

AFTER: Final = "after training"
MUCH_MORE: Final = 1.01  # times the bytes: two scores are of different parts of a text
COMPRESSORS: Final = {"gzip -9": "gzip_bits_per_byte", "xz -9e": "xz_bits_per_byte"}


@dataclass(frozen=True, kw_only=True)
class HeldOutScore:
    """Bits per byte of a held-out text, before training (if measured) and after.

    `references` are compressors' results by name, of the whole text.
    """

    text: HeldOutText
    before: float | None
    after: float
    context_tokens: int
    references: dict[str, float]
    after_averaged: float | None = None  # of the average of the weights
    after_words: str = AFTER  # or "after step N" if the run trained on without a newer score

    @property
    def part_words(self) -> str:
        """Name the part of the text that the model read, and its bytes."""
        text = self.text
        if text.is_assistant:
            return f"{text.read_words} bytes"
        share = text.num_bytes / text.split_bytes if text.split_bytes else 1.0
        return f"{'all' if share >= WHOLE else f'the first {share:.1%}'}, {text.num_bytes:,} bytes"

    def worst_first(self) -> list[tuple[str, float]]:
        """Return the model's scores and the compressors', which always read the whole text.

        Of conversations compressors read the users' turns too, so their results do not compare and are left out.
        """
        scores = {} if self.text.is_assistant else dict(self.references)
        if self.before is not None:
            scores["before training"] = self.before
        scores[self.after_words] = self.after
        if self.after_averaged is not None:
            scores[f"{self.after_words}, weights averaged"] = self.after_averaged
        return sorted(scores.items(), key=lambda score: -score[1])


def held_out_score(
    points: Sequence[Point], plan: dict[str, Any], folder: Path, *, split: str, last_step: int
) -> HeldOutScore | None:
    """Return a run's newest score, None before one."""
    measured = [point for point in comparable(points) if BITS_PER_BYTE in point.metrics]
    if not measured:
        return None
    last, step = measured[-1].metrics, measured[-1].step
    dataset: dict[str, Any] = read_json(folder / "dataset.json")
    reference = dataset.get("references", {}).get(split, {})
    after = AFTER if step >= last_step else f"after step {step:,}"
    return HeldOutScore(
        text=held_out_text(folder, points, split=split),
        before=measured[0].metrics[BITS_PER_BYTE] if measured[0].step == 0 < step else None,
        after=last[BITS_PER_BYTE],
        context_tokens=plan.get("batch", {}).get("context_tokens", 0),
        references={name: reference[key] for name, key in COMPRESSORS.items() if reference.get(key)},
        after_averaged=last.get(averaged(BITS_PER_BYTE)),
        after_words="before training" if step == 0 else after,
    )


def held_out_text(folder: Path, points: Sequence[Point], *, split: str) -> HeldOutText:
    """Return the text of a run's newest score."""
    dataset: dict[str, Any] = read_json(folder / "dataset.json")
    held_out: dict[str, Any] = dataset.get("splits", {}).get(split, {})
    measured = newest_point(points, VALIDATION_BYTES)
    return HeldOutText(
        source=str(dataset.get("name", UNKNOWN)),
        split_bytes=int(held_out.get("text_bytes", 0)),
        num_bytes=int(measured.metrics[VALIDATION_BYTES]) if measured else 0,
        tokenizer=str(dataset.get("tokenizer_fingerprint", UNKNOWN)),
        is_assistant=is_assistant(held_out),
    )


def is_assistant(split: Mapping[str, Any]) -> bool:
    """Report whether only the assistant's words have loss in a split of dataset.json."""
    return any(shard.get("mask_sha256") for shard in split.get("shards", ()))


def comparable(points: Sequence[Point]) -> list[Point]:
    """Return the points without validation scores of other bytes than the newest: no line may join the two."""
    scored = newest_point(points, BITS_PER_BYTE)
    newest = None if scored is None else held_out_bytes(scored)

    def kept(point: Point) -> Point:
        if BITS_PER_BYTE not in point.metrics or held_out_bytes(point) == newest:
            return point
        metrics = {name: value for name, value in point.metrics.items() if not name.startswith(OF_VALIDATION)}
        return replace(point, metrics=metrics)

    return [kept(point) for point in points]


def why_unranked(texts: Iterable[HeldOutText], *, metric: str) -> str | None:
    """Say why scores of these texts do not compare, None if they do."""
    known = [text for text in texts if text.source != UNKNOWN]
    named = {text.text: text.words for text in known}
    if len(named) > 1:
        listed = ", ".join(named.values())
        return f"The held-out texts differ, and scores of different texts do not compare: {listed}."
    read = [text.num_bytes for text in known if text.num_bytes]
    if read and max(read) > MUCH_MORE * min(read) and not metric.startswith("train/"):
        return (
            f"Between {min(read):,} and {max(read):,} bytes of the held-out text were read: not the same part of it, "
            "so the scores do not compare."
        )
    if metric != BITS_PER_BYTE and len({text.tokenizer for text in known}) > 1:
        return f"The tokenizers differ, and {metric} is in nats per token; {BITS_PER_BYTE} compares."
    return None
