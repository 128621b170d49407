import pytest

from lmtrain.launch.nodes import NodesJob

JOB = NodesJob(name="a", words=["seed=1", "run.name=a b"], num_nodes=2, ranks_per_node=8, device="NVIDIA H200")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("llama_3-8b", "llama-3-8b"),
        ("sweep/lr=1e-3", "sweep-lr-1e-3"),
        ("7B.run", "run-7b-run"),
        ("Ä_", "run"),
        ("x" * 49 + ".y", "x" * 49),
    ],
)
def test_a_run_s_name_becomes_one_of_a_host(name: str, label: str) -> None:
    assert NodesJob(name=name, words=[], num_nodes=1, ranks_per_node=1, device=None).label == label


def test_a_node_s_command_has_the_trainer_s_numbers_and_every_word_by_itself() -> None:
    assert JOB.torchrun("python", node_rank="1", address="n0", port=7) == [
        *("python", "-P", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=8", "--node-rank=1"),
        *("--master-addr=n0", "--master-port=7", "--no-python"),
        *("python", "-P", "-m", "lmtrain.cli", "train", "seed=1", "run.name=a b"),
    ]
