"""The held-out text of a run's scores: which of them compare."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_BYTES
from lmtrain.report.runs.comparable_scores import MUCH_MORE_BYTES
from lmtrain.report.runs.scored_data import is_of_earlier_data
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.held_out_text import UNKNOWN, HeldOutText
from lmtrain.tracking.run_log import Point


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
    """Tell of a split in dataset.json whether only the assistant's words have loss."""
    return any(shard.get("mask_sha256") for shard in split.get("shards", ()))


def is_one_part(texts: Iterable[HeldOutText]) -> bool:
    """Tell whether scores of one text are of one part of it: of as many bytes, but for a hundredth."""
    read = [text.num_bytes for text in texts]
    return not read or max(read) <= MUCH_MORE_BYTES * min(read)


def smaller_parts(texts: Iterable[HeldOutText]) -> dict[HeldOutText, int]:
    """Number the parts of these texts from 1; what is of a text's largest part read, or unknown, has no number."""
    known = {text for text in texts if text.source != UNKNOWN and text.num_bytes}
    numbers: dict[HeldOutText, int] = {}
    largest: HeldOutText | None = None
    number, count = 0, 0
    for text in sorted(known, key=lambda text: (text.text, -text.num_bytes)):
        if largest is None or largest.text != text.text:
            largest, number = text, 0
        elif not is_one_part([largest, text]):
            largest, count = text, count + 1
            number = count
        if number:
            numbers[text] = number
    return numbers


def parts_notes(parts: Mapping[HeldOutText, int]) -> list[str]:
    """Say of each numbered part how much of its text it is."""
    first = {number: text for text, number in reversed([*parts.items()])}
    return [
        f"[{number}] Measured on {text.read_words} held-out bytes of {text.source}: "
        "compares with scores of this part alone."
        for number, text in sorted(first.items())
    ]


def why_unranked(texts: Iterable[HeldOutText], *, metric: str) -> str | None:
    """Say why scores of these texts have no order, None where they have one."""
    known = [text for text in texts if text.source != UNKNOWN]
    is_other_text = len({text.text for text in known}) > 1
    if is_other_text or not (metric.startswith("train/") or is_one_part(text for text in known if text.num_bytes)):
        return scores_notes(known)[0]
    if metric != BITS_PER_BYTE and len({text.tokenizer for text in known}) > 1:
        return f"The tokenizers differ, and no {metric} of one, in nats per token, compares with another's."
    return None


def scores_notes(texts: Iterable[HeldOutText]) -> list[str]:
    """Say which scores of these texts, all of them known, do not compare; nothing where all do."""
    known = [text for text in texts if text.source != UNKNOWN]
    named = {text.text: "" for text in known}
    named |= {text.text: text.words for text in sorted(known, key=lambda text: text.num_bytes)}
    if len(named) > 1:
        return [f"The held-out texts differ, and no score of one compares with another's: {', '.join(named.values())}."]
    notes: list[str] = []
    read = [text.num_bytes for text in known]
    if not is_one_part(known):
        notes.append(
            f"Between {min(read):,} and {max(read):,} bytes of the held-out text were read: not the same part of it, "
            "and no score of one part compares with another's."
        )
    if len({text.tokenizer for text in known}) > 1:
        compares = "nats per token do not compare" if notes else "bits per byte compare, nats per token would not"
        notes.append(f"The tokenizers differ: {compares}.")
    return notes
