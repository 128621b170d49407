import random

import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.pieces import Remaining, cut_into_pieces
from lmtrain.errors import ConfigurationError


def corpus(count=400, different=150):
    rng = random.Random(0)
    texts = [f"text {rng.randrange(different)}" for _ in range(count)]
    documents: list[Document | Skipped] = [Document(f"{number}", text) for number, text in enumerate(texts)]
    documents[3] = Skipped("3", "why")
    return documents


def reference(documents):
    seen = set()
    for item in documents:
        if isinstance(item, Document) and item.text in seen:
            yield Skipped(item.id, "exact duplicate")
        else:
            seen.add(getattr(item, "text", None))
            yield item


def test_the_first_of_each_content_stays():
    assert list(ExactDeduplication()(corpus())) == list(reference(corpus()))


def test_a_second_call_starts_anew():
    stage = ExactDeduplication()
    assert list(stage(corpus())) == list(stage(corpus()))


@pytest.mark.parametrize(("num_tasks", "piece_characters"), [(1, 10**9), (1, 900), (5, 2000), (16, 1)])
def test_jobs_over_pieces_decide_the_same_as_one_stream(tmp_path, num_tasks, piece_characters):
    stage = ExactDeduplication(num_tasks=num_tasks)
    pieces = cut_into_pieces(tmp_path / "pieces", corpus(), piece_characters=piece_characters)
    for job in stage.jobs(pieces, tmp_path / "exact"):
        for task in reversed(range(job.num_tasks)):
            job.run(task)
    rest = Remaining(pieces, [(stage, tmp_path / "exact")])
    items = [item for piece in range(pieces.count) for item in rest.items(piece)]
    assert items == list(reference(corpus()))


def test_the_number_of_tasks_is_not_in_the_fingerprint():
    assert ExactDeduplication(num_tasks=1).fingerprint_parts() == ExactDeduplication().fingerprint_parts()


def test_no_task_is_refused():
    with pytest.raises(ConfigurationError, match=r"deduplicate\.exact\.num_tasks=0 must be positive; nearest valid: 1"):
        ExactDeduplication(num_tasks=0)
