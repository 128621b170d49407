from pathlib import Path

import pytest

from lmtrain.training.context import RunContext

FACTS = {"plan": None, "dataset": None, "tokenizer": None, "identity": {}, "events": None, "log": None}


@pytest.mark.parametrize(("rank", "is_main"), [(0, True), (1, False), (7, False)])
def test_only_the_first_rank_writes_for_all(rank, is_main):
    assert RunContext(folder=Path("runs/a"), rank=rank, **FACTS).is_main_process is is_main


def test_checkpoints_lie_inside_the_run():
    assert RunContext(folder=Path("runs/a"), **FACTS).checkpoints_folder == Path("runs/a/checkpoints")
