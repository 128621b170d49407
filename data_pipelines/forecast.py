"""What a token budget needs, reported before the long work: documents, hours and disk, from a sample of documents.

A source that is smaller than the sample is known as a whole, and refused at once when it has far too few tokens.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import quantiles

import numpy as np

from data_pipelines.build_request import BuildRequest
from data_pipelines.progress import StageProgress, stage, tell
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.encode import render_documents
from data_pipelines.stages.stage import in_turn
from lmtrain.accounting.quantities import format_quantity
from lmtrain.data.manifest import DTYPES
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.tokenizers.base import Tokenizer

DOCUMENTS_AT_ONCE = 256
INDEX_SHARE = 0.05  # of the shards: document ends, the tokenizer, files being written
INDEX_BYTES = 8  # of one document's end
FAR_TOO_SHORT = 2  # a whole source has fewer than half of the budget's tokens; when it is nearer, counting decides

CountTokens = Callable[[Sequence[Document]], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first documents of a source: their lengths in tokens, and how long reading and encoding them took."""

    lengths: Sequence[int] = field(repr=False)
    num_skipped: int
    seconds: float
    is_whole: bool

    @property
    def num_tokens(self) -> int:
        """Return the sample's tokens with an end-of-text each, as they are written."""
        return sum(self.lengths) + len(self.lengths)

    def line(self) -> str:
        """Return a line on the documents' lengths."""
        mean = sum(self.lengths) / len(self.lengths)
        places = quantiles(self.lengths, n=20, method="inclusive") if len(self.lengths) > 1 else [mean] * 19
        lengths = f"mean {mean:,.2f}, median {places[9]:,.0f}, p95 {places[18]:,.0f} tokens"
        which = "all" if self.is_whole else "the first"
        return f"  document length: {lengths} ({which} {len(self.lengths):,} documents, {self.num_skipped:,} skipped)"


def forecast(
    question: BuildRequest, tokenizer: Tokenizer, *, num_documents: int, folder: Path, allow_short: bool
) -> None:
    """Read the first documents through all stages but those over whole corpora, and report what the budget needs.

    Raises:
        DataError: The sample is the whole source, and is too short.
        EnvironmentProblem: The disk has too little space.
    """
    settings = question.settings
    if settings.token_budget is None or num_documents == 0:
        return
    stages = [one for one in question.stages if one.scope != "corpus"]

    def count_tokens(documents: Sequence[Document]) -> Sequence[int]:
        return np.diff(render_documents(documents, tokenizer).ends, prepend=0).tolist()

    with stage("sample", total_documents=num_documents) as progress:
        items = in_turn(stages, question.source.documents())
        sample = sample_documents(items, count_tokens, num_documents=num_documents, progress=progress)
    report(
        sample,
        token_budget=settings.token_budget,
        train_fraction=settings.held_out.fractions["train"],
        bytes_per_id=DTYPES[settings.token_dtype].itemsize,
        free_bytes=shutil.disk_usage(folder).free,
        allow_short=allow_short,
    )


def sample_documents(
    items: Iterable[Document | Skipped], count_tokens: CountTokens, *, num_documents: int, progress: StageProgress
) -> Sample:
    """Count the tokens of a source's first `num_documents` after its stages.

    Raises:
        DataError: The source gives none.
    """
    started = time.monotonic()
    lengths: list[int] = []
    num_skipped = 0
    remaining = iter(items)
    is_whole = False
    while len(lengths) < num_documents and not is_whole:
        wanted = min(DOCUMENTS_AT_ONCE, num_documents - len(lengths))
        some = list(islice(remaining, wanted))
        is_whole = len(some) < wanted
        batch = [item for item in some if isinstance(item, Document)]
        num_skipped += len(some) - len(batch)
        counts = count_tokens(batch) if batch else ()
        lengths += counts
        text_bytes = sum(len(document.text.encode(errors="replace")) for document in batch)
        progress.advance(documents=len(batch), tokens=sum(counts), text_bytes=text_bytes)
    if not lengths:
        raise DataError(f"the source gives no document to estimate from ({num_skipped:,} skipped).")
    return Sample(lengths=lengths, num_skipped=num_skipped, seconds=time.monotonic() - started, is_whole=is_whole)


def report(
    sample: Sample,
    *,
    token_budget: int,
    train_fraction: float,
    bytes_per_id: int,
    free_bytes: int,
    allow_short: bool,
) -> None:
    """Report what a budget of training tokens needs, held-out documents included, or refuse an impossible one.

    Raises:
        DataError: The sample is the whole source, and is far too short.
        EnvironmentProblem: The disk has too little space.
    """
    tell(sample.line())
    key = f"budget.tokens (data.folder.token_budget)={token_budget:,}"
    if sample.is_whole:
        if FAR_TOO_SHORT * sample.num_tokens < token_budget and not allow_short:
            rule = f"{key}: the source has only about {sample.num_tokens:,} tokens"
            raise DataError(f"{rule}; use all with data.folder.allow_short=true, or ask for fewer.")
        return
    num_tokens = token_budget / train_fraction
    num_documents = num_tokens * len(sample.lengths) / sample.num_tokens
    disk_bytes = round((num_tokens * bytes_per_id + num_documents * INDEX_BYTES) * (1 + INDEX_SHARE))
    hours = format_quantity(num_tokens * sample.seconds / sample.num_tokens, "seconds")
    room = f"{format_quantity(disk_bytes, 'bytes')} of {format_quantity(free_bytes, 'bytes')} free disk"
    need = f"about {round(num_documents):,} documents, {hours} at the sample's rate, {room}"
    tell(f"  {format_quantity(token_budget)} training tokens need {need}")
    if disk_bytes > free_bytes:
        fix = f"free some, set data.folder.root, or ask for {format_quantity(token_budget * free_bytes / disk_bytes)}"
        raise EnvironmentProblem(f"{key}: too little disk space: {room}; {fix} tokens.")
