"""A token budget's need, reported before the long work: documents, hours and disk, from a sample of documents.

A source within the sample is known as a whole, and refused at once with far too few tokens.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from data_pipelines.progress import StageProgress, tell
from data_pipelines.sources.base import Document, Skipped
from lmtrain.accounting.quantities import format_quantity
from lmtrain.accounting.training_plan.stages import INDEX_SHARE
from lmtrain.errors import DataError, EnvironmentProblem

DOCUMENTS_AT_ONCE = 256
INDEX_BYTES = 8  # of one document's end
FAR_TOO_SHORT = 2  # times a whole source are fewer than the budget; where it is nearer, counting decides

CountTokens = Callable[[Sequence[Document]], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first documents of a source: their lengths in tokens, and how long reading and encoding them took."""

    lengths: Sequence[int] = field(repr=False)
    num_skipped: int
    num_text_bytes: int
    seconds: float
    is_whole: bool

    @property
    def mean_tokens(self) -> float:
        """Return the mean length, without end-of-text."""
        return sum(self.lengths) / len(self.lengths)

    def quantile_tokens(self, fraction: float) -> float:
        """Return the length not exceeded by this fraction of the documents; between two, in proportion."""
        ordered = sorted(self.lengths)
        place = fraction * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def num_tokens(self) -> int:
        """Return the sample's tokens with an end-of-text each, as they are written."""
        return sum(self.lengths) + len(self.lengths)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A whole preparation's need."""

    documents: int
    seconds: float
    disk_bytes: int


def sample_documents(
    items: Iterable[Document | Skipped],
    count_tokens: CountTokens,
    *,
    num_documents: int,
    progress: StageProgress | None = None,
) -> Sample:
    """Count the tokens of a source's first `num_documents` after its stages.

    Raises:
        DataError: There is no document.
    """
    started = time.monotonic()
    lengths: list[int] = []
    num_text_bytes = 0
    remaining = iter(items)
    skipped: list[Skipped] = []
    while len(lengths) < num_documents:
        wanted = min(DOCUMENTS_AT_ONCE, num_documents - len(lengths))
        batch = list(islice(_documents(remaining, skipped), wanted))
        counts = count_tokens(batch) if batch else ()
        lengths += counts
        text_bytes = sum(len(document.text.encode(errors="replace")) for document in batch)
        num_text_bytes += text_bytes
        if progress is not None:
            progress.advance(documents=len(batch), tokens=sum(counts), text_bytes=text_bytes)
        if len(batch) < wanted:
            break
    if not lengths:
        raise DataError(f"the source gives no document to estimate from ({len(skipped):,} skipped).")
    return Sample(
        lengths=lengths,
        num_skipped=len(skipped),
        num_text_bytes=num_text_bytes,
        seconds=time.monotonic() - started,
        is_whole=len(lengths) < num_documents,
    )


def outlook(sample: Sample, *, token_budget: int, train_fraction: float, bytes_per_id: int) -> Outlook:
    """Return the need of a budget of training tokens; held-out documents come on top."""
    num_tokens = token_budget / train_fraction
    num_documents = num_tokens * len(sample.lengths) / sample.num_tokens
    return Outlook(
        documents=round(num_documents),
        seconds=num_tokens * sample.seconds / sample.num_tokens,
        disk_bytes=round((num_tokens * bytes_per_id + num_documents * INDEX_BYTES) * (1 + INDEX_SHARE)),
    )


def tell_sample(sample: Sample) -> None:
    """Return a line on the documents' lengths."""
    lengths = (
        f"mean {sample.mean_tokens:,.2f}, median {sample.quantile_tokens(0.5):,.0f}, "
        f"p95 {sample.quantile_tokens(0.95):,.0f} tokens"
    )
    which = "all" if sample.is_whole else "the first"
    tell(f"  a document has {lengths} ({which} {len(sample.lengths):,} documents, {sample.num_skipped:,} skipped)")


def report_outlook(sample: Sample, need: Outlook, *, token_budget: int, free_bytes: int, allow_short: bool) -> None:
    """Report a budget's need, or refuse an impossible one.

    Raises:
        DataError: The sample is the whole source, and is far too short.
        EnvironmentProblem: The disk has not the room.
    """
    tell_sample(sample)
    if sample.is_whole:
        if FAR_TOO_SHORT * sample.num_tokens < token_budget and not allow_short:
            raise _far_too_short(sample, token_budget)
        return
    room = f"{format_quantity(need.disk_bytes, 'bytes')} of {format_quantity(free_bytes, 'bytes')} free disk"
    hours = format_quantity(need.seconds, "seconds")
    tell(
        f"  {format_quantity(token_budget)} training tokens take about {need.documents:,} documents, {hours} "
        f"at the sample's rate, {room}"
    )
    if need.disk_bytes > free_bytes:
        share = token_budget * free_bytes / need.disk_bytes
        msg = f"the disk has no room for budget.tokens (data.folder.token_budget)={token_budget:,}: {room}"
        raise EnvironmentProblem(f"{msg}; free some, set data.folder.root, or ask for {format_quantity(share)} tokens.")


def _far_too_short(sample: Sample, token_budget: int) -> DataError:
    asked = f"budget.tokens (data.folder.token_budget)={token_budget:,}"
    msg = f"{asked}, but the source has about {sample.num_tokens:,} tokens in all"
    return DataError(f"{msg}; take them with data.folder.allow_short=true, or ask for fewer.")


def _documents(items: Iterator[Document | Skipped], skipped: list[Skipped]) -> Iterator[Document]:
    for item in items:
        if isinstance(item, Skipped):
            skipped.append(item)
        else:
            yield item
