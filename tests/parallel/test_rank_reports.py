from pathlib import Path

import pytest

from lmtrain.parallel.rank_reports import first_problem, on_all_ranks, report_of, write_and_report
from tests.ranks import on_ranks


def test_a_report_is_read_once(tmp_path):
    assert write_and_report(tmp_path, 1, lambda: "written") == "written"
    assert report_of(tmp_path, 1, timeout_seconds=0) == "written"
    assert not [*tmp_path.iterdir()]


def test_a_failure_and_silence_are_told_with_their_rank(tmp_path):
    def fail():
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_and_report(tmp_path, 2, fail)
    with pytest.raises(RuntimeError, match="rank 2: no space left"):
        report_of(tmp_path, 2, timeout_seconds=0)
    with pytest.raises(RuntimeError, match="rank 3 has not written its shards within 0 s"):
        report_of(tmp_path, 3, timeout_seconds=0)


def _rank(rank: int) -> None:
    assert on_all_ranks({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    acted: list[int] = []
    assert first_problem(lambda: acted.append(rank), acts=rank == 1) is None
    assert acted == [1] * rank

    def fail_on_1() -> None:
        if rank == 1:
            raise RuntimeError("the second one")

    assert first_problem(fail_on_1) == "the second one"


@pytest.mark.distributed
def test_every_rank_learns_of_one_ranks_problem(tmp_path: Path) -> None:
    on_ranks(_rank, folder=tmp_path)
