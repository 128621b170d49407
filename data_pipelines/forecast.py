"""What a token budget needs, reported before the long work: documents, hours and disk, from a sample of documents."""

import shutil
import time
from itertools import islice
from pathlib import Path

from data_pipelines.build_request import BuildRequest
from data_pipelines.progress import stage, tell
from data_pipelines.sources.base import Document
from data_pipelines.stages.encode import encode_documents
from data_pipelines.stages.stage import in_turn
from lmtrain.accounting.quantities import format_quantity
from lmtrain.data.manifest import DTYPES
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.tokenizers.base import Tokenizer

DOCUMENTS_AT_ONCE = 256
INDEX_BYTES = 8  # of one document's end
COPIES = 2  # encoded blocks, and the shards made of them
FAR_TOO_SHORT = 2  # a whole source has fewer than half of the budget's tokens; when it is nearer, counting decides


def forecast(
    request: BuildRequest, tokenizer: Tokenizer, *, num_documents: int, folder: Path, allow_short: bool
) -> None:
    """Encode the first documents, and report what the budget needs at their rate.

    Raises:
        DataError: They are the whole source, and far too few.
        EnvironmentProblem: The disk has too little space.
    """
    settings = request.settings
    if settings.token_budget is None or num_documents == 0:
        return
    stages = [one for one in request.stages if one.scope != "corpus"]
    items = in_turn(stages, request.source.documents())
    sample = islice((item for item in items if isinstance(item, Document)), num_documents)
    started, num_read, num_tokens = time.monotonic(), 0, 0
    with stage("sample") as progress:
        while some := list(islice(sample, DOCUMENTS_AT_ONCE)):
            tokens = len(encode_documents(some, tokenizer).ids)
            num_read, num_tokens = num_read + len(some), num_tokens + tokens
            progress.advance(documents=len(some), tokens=tokens, fraction=num_read / num_documents)
    key = f"budget.tokens (data.folder.token_budget)={settings.token_budget:,}"
    if num_read < num_documents:
        if FAR_TOO_SHORT * num_tokens < settings.token_budget and not allow_short:
            rule = f"{key}: the source has only about {num_tokens:,} tokens"
            raise DataError(f"{rule}; use all with data.folder.allow_short=true, or ask for fewer.")
        return
    times = settings.token_budget / settings.held_out.fractions["train"] / num_tokens
    bytes_per_id = DTYPES[settings.token_dtype].itemsize
    disk_bytes = round(COPIES * times * (num_tokens * bytes_per_id + num_read * INDEX_BYTES))
    room = f"{format_quantity(disk_bytes, 'bytes')} of disk"
    hours = format_quantity(times * (time.monotonic() - started), "seconds")
    tell(f"  the budget needs about {round(times * num_read):,} documents, {hours} at the sample's rate, {room}")
    free_bytes = shutil.disk_usage(folder).free
    if disk_bytes > free_bytes:
        free = format_quantity(free_bytes, "bytes")
        raise EnvironmentProblem(f"{key}: needs {room}, got {free} free; free some, or set data.folder.root.")
