"""Forecast a token budget's need, before the long work, from a sample of the source's documents."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_pipelines.build_request import BuildRequest
from data_pipelines.progress import stage
from data_pipelines.sources.base import Document
from data_pipelines.stages.estimate import outlook, report_outlook, sample_documents
from data_pipelines.stages.render import render_documents
from data_pipelines.stages.stage import in_turn
from lmtrain.data.layout import DTYPES
from lmtrain.tokenizers.base import Tokenizer


def forecast(
    question: BuildRequest, tokenizer: Tokenizer, *, num_documents: int, folder: Path, allow_short: bool
) -> None:
    """Read the first documents through all stages but those of whole corpora, and report the forecast.

    Raises:
        DataError: The sample is the whole source, and is too short.
        EnvironmentProblem: The disk has not the room.
    """
    budget, held_out = question.settings.token_budget, question.settings.held_out
    if budget is None or num_documents == 0:
        return
    stages = [one for one in question.stages if one.scope != "corpus"]

    def count_tokens(documents: Sequence[Document]) -> Sequence[int]:
        return np.diff(render_documents(documents, tokenizer).ends, prepend=0).tolist()

    with stage("sample", total_documents=num_documents) as progress:
        items = in_turn(stages, question.source.documents())
        sample = sample_documents(items, count_tokens, num_documents=num_documents, progress=progress)
    train_fraction = 1 - held_out.validation_fraction - held_out.test_fraction
    bytes_per_id = DTYPES[question.settings.token_dtype].itemsize
    need = outlook(sample, token_budget=budget, train_fraction=train_fraction, bytes_per_id=bytes_per_id)
    report_outlook(
        sample,
        need,
        token_budget=budget,
        free_bytes=shutil.disk_usage(folder).free,
        allow_short=allow_short,
    )
