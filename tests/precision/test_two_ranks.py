"""Every precision that a CPU has, over two gloo ranks, replicated and sharded."""

import json
from pathlib import Path

import pytest

from tests import forked, tiny
from tests.data.documents import make_dataset

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def ranks(request, tmp_path_factory):
    """What each rank saw in each precision."""
    folder = tmp_path_factory.mktemp(request.param)
    make_dataset(folder / "data", [400] * 8, num_ids=257)
    environment = tiny.environment()
    finished = forked.run(SCRIPT, [request.param, str(folder)], folder=folder, environment=environment, num_ranks=2)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.distributed
def test_an_infinity_on_one_rank_skips_the_step_on_both(ranks):
    for rank in ranks:
        first, second, third = rank["broken"]["sums"]
        assert first == second
        assert second != third
        assert rank["broken"]["scale"] == 2.0**15
    assert ranks[0]["broken"]["sums"] == ranks[1]["broken"]["sums"]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("precision", ["fp32", "fp16_mixed", "bf16_mixed", "bf16_true"])
def test_every_precision_trains_over_ranks_and_stays_near_fp32(ranks, precision):
    ours, theirs = (rank[precision] for rank in ranks)
    assert ours["sums"] == theirs["sums"]
    assert ours["dtypes"] == ["torch.bfloat16" if precision == "bf16_true" else "torch.float32"]
    assert ours["losses"] == pytest.approx(ranks[0]["fp32"]["losses"], rel=1e-2)
