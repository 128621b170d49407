import json
from pathlib import Path

import pytest

from lmtrain.callbacks.communication import exposed_share
from lmtrain.training.trace_summary import Activity
from tests.callbacks.test_two_ranks import train


def event(name, start, end, **facts):
    return Activity(name=name, span=(start, end), **facts)


def test_on_a_cpu_gloo_is_set_against_operators():
    events = [event("aten::mm", 0, 60), event("gloo:all_reduce", 50, 90, is_annotation=True), event("DDP", 0, 100)]
    assert exposed_share(events) == pytest.approx(0.3)


def test_on_a_gpu_nccl_is_set_against_kernels_and_not_against_annotations():
    gpu = {"is_on_gpu": True}
    events = [
        event("aten::mm", 0, 100),
        event("gemm", 0, 60, **gpu),
        event("ncclDevKernel_AllReduce", 50, 90, **gpu),
        event("Optimizer.step", 0, 100, is_annotation=True, **gpu),
    ]
    assert exposed_share(events) == pytest.approx(0.3)


@pytest.mark.distributed
@pytest.mark.slow
def test_waiting_for_a_rank_that_is_late_is_communication(tmp_path: Path, dataset_folder: Path):
    """The second rank computes 0.2 s longer in every step: the first one waits for it."""
    train(tmp_path, dataset_folder, "late")
    for rank, is_waiting in (("0", True), ("1", False)):
        rows = [json.loads(line) for line in (tmp_path / f"events/rank{rank}.jsonl").read_text().splitlines()]
        assert [row["name"] for row in rows].count("trace") == 4, "the third step and the fifth, begun and ended"
        last = [row for row in rows if row["name"] == "ledger"][-1]
        share = last["communication"] / (last["communication"] + last["compute"])
        assert (share > 0.6) == is_waiting, last
        assert (share < 0.4) != is_waiting, last
