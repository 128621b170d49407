"""The path without datatrove and the paths through it prepare the same bytes from a corpus with everything planted."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_pipelines.engines.cluster import Task, plan_jobs, require_finished
from data_pipelines.engines.local import LocalEngine
from data_pipelines.prepare import prepare
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.stage import in_turn
from data_pipelines.stages.train_tokenizer import BytePairSpec
from lmtrain.data.packing_index import ends_of_shards
from lmtrain.data.shards import open_dataset
from tests.data_pipelines.corpus import Planted
from tests.data_pipelines.poems import files

CLEANING = {"unicode": UnicodeRepair(), "length": LengthFilter()}
EXACT = {"exact": ExactDeduplication(num_tasks=2)}


class DatatroveEngine:
    """All stages as jobs of datatrove's local executor: what SLURM and Ray run, on this machine."""

    def __call__(self, source, stages, /, *, folder):
        from datatrove.executor import LocalPipelineExecutor  # pyright: ignore[reportMissingImports]  # an extra

        plan = plan_jobs(source, stages, folder.absolute(), num_tasks=3)
        for job in plan.jobs:
            place = plan.job_folder(job)
            executor = LocalPipelineExecutor(pipeline=[Task(job.run)], tasks=job.num_tasks, logging_dir=str(place))
            executor.run()
            require_finished(job, executor, place)
        return plan.items()


@pytest.fixture(autouse=True)
def extra():
    pytest.importorskip("datatrove.executor")


def make(root, engine):
    spec = BytePairSpec(vocab_size=400)
    return prepare(
        source=Planted(), tokenizer=spec, cleaning=CLEANING, deduplicate=EXACT, engine=engine, root=str(root)
    )


@pytest.mark.slow
def test_cleaning_and_exact_deduplication_through_datatrove_give_the_same_bytes(tmp_path):
    plain = make(tmp_path / "plain", LocalEngine(num_processes=0))
    through = make(tmp_path / "through", DatatroveEngine())
    assert through.name == plain.name
    assert files(through) == files(plain)
    manifest = json.loads((plain / "dataset.json").read_text())
    assert manifest["dropped"] == {"empty": 3, "exact duplicate": 6, "not UTF-8 text": 1}
    assert manifest["repaired"] == {"control characters": 2}


def test_our_tokens_are_those_of_datatroves_own_tokenizer(tmp_path):
    from datatrove.data import Document as Page  # pyright: ignore[reportMissingImports]  # an extra
    from datatrove.pipeline.tokens import DocumentTokenizer  # pyright: ignore[reportMissingImports]  # an extra

    folder = make(tmp_path / "ours", LocalEngine(num_processes=0))
    dataset = open_dataset(folder)
    stages = [*CLEANING.values(), *EXACT.values()]
    kept = [item.text for item in in_turn(stages, Planted().documents()) if hasattr(item, "text")]
    step = DocumentTokenizer(
        str(tmp_path / "theirs"),
        tokenizer_name_or_path=str(next(folder.rglob("tokenizer.json"))),
        eos_token="<|end_of_text|>",
        shuffle_documents=False,
    )
    step.run((Page(text=text, id="") for text in kept), 0, 1)
    (tokens,) = Path(tmp_path / "theirs").glob("*.ds")
    theirs = np.fromfile(tokens, dtype=np.uint16)
    ends = np.fromfile(f"{tokens}.index", dtype=np.uint64).astype(np.int64)
    of_documents = {ids.tobytes() for ids in np.split(theirs, ends[:-1])}
    ours = set()
    for name, split in dataset.manifest.splits.items():
        tokens = dataset.split(name)
        ids = np.asarray(tokens.window(0, split.num_tokens))
        ends = np.concatenate([*ends_of_shards(tokens)])
        ours |= {part.tobytes() for part in np.split(ids, ends[:-1])}
    assert ours == of_documents
    assert len(theirs) == sum(split.num_tokens for split in dataset.manifest.splits.values())
