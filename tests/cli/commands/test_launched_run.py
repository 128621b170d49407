from pathlib import Path

import pytest

from lmtrain.cli.commands.launched_run import LaunchedRun, launched_run
from lmtrain.errors import ConfigurationError, DataError

FLEET = ["cluster=h100_8x", "cluster.num_nodes=2", "strategy=fsdp", "batch.tokens_per_step=12288"]


def asked(*words: str, is_here: bool = True) -> LaunchedRun:
    run = launched_run([*words], program="lmtrain launch slurm", is_here=is_here)
    assert run is not None
    return run


def test_a_run_gets_the_name_that_its_training_would_give_it_and_the_numbers_of_its_cluster(tmp_path: Path) -> None:
    run = asked(*FLEET, f"run.root={tmp_path}")
    assert run.job.name.startswith("llama_tiny-")
    assert run.job.words == [*FLEET, f"run.root={tmp_path}", f"run.name={run.job.name}"]
    assert (run.job.num_nodes, run.job.ranks_per_node, run.job.device) == (2, 8, "NVIDIA H100 80GB HBM3")
    assert run.root == tmp_path


def test_a_typed_name_is_kept_and_processors_are_no_device() -> None:
    run = asked("cluster=cpu", "cluster.num_nodes=2", "run.name=cat")
    assert (run.job.name, run.job.words[-1], run.job.device) == ("cat", "run.name=cat", None)
    assert asked("trainer.accelerator=gpu").job.device == "", "a GPU of any name"


def test_fp8_and_a_gpu_are_of_the_nodes_not_of_this_machine() -> None:
    assert asked(*FLEET, "precision=fp8", "trainer.accelerator=gpu").job.ranks_per_node == 8


def test_paths_are_looked_at_where_the_nodes_see_them_too() -> None:
    words = [*FLEET, "source=files", "source.paths=[not/there]"]
    with pytest.raises(DataError, match="not/there"):
        asked(*words)
    assert asked(*words, is_here=False).job.num_nodes == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*FLEET, "optimizer.lrr=1"], r"Did you mean 'optimizer\.lr=1'"),
        ([*FLEET, "batch.tokens_per_step=1000"], r"batch\.tokens_per_step=1000"),
        ([*FLEET, "strategy=single"], r"strategy=single trains on 1 rank, not 16"),
        ([*FLEET, "strategy=pipeline", "strategy.num_stages=4"], r"strategy=pipeline .* does not train"),
        ([*FLEET, "strategy=tensor"], r"strategy\.tensor_size=8 does not divide model\.num_heads=2"),
        (["cluster.num_nodes=2"], r"cluster=local does not say whether the nodes have GPUs"),
        ([*FLEET, "trainer.num_nodes=3"], r"cluster\.num_nodes=2.*nearest valid: cluster\.num_nodes=3"),
        ([*FLEET, "-m", "seed=1,2"], r"starts one run"),
        ([*FLEET, "logger.tracking_uri=https://me:hunter2secret@host"], r"holds a secret.*oc\.env:NAME"),
        ([*FLEET, "run.name=../b"], r"run\.name='\.\./b'"),
        ([*FLEET, "resume=runs/none"], r"runs/none"),
    ],
)
def test_a_run_that_cannot_be_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        asked(*words)
