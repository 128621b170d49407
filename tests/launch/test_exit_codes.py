import signal
from pathlib import Path

import pytest

from lmtrain.launch.exit_codes import RankEnd, describe, plain_exit_code, root_cause


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        (0, 0),
        (4, 4),
        (85, 85),
        (-signal.SIGTERM, 143),
        (-signal.SIGINT, 130),
        (-signal.SIGKILL, 137),
        (-signal.SIGUSR1, 85),
    ],
)
def test_death_by_a_signal_reads_as_the_shell_reads_it(code, plain):
    assert plain_exit_code(code) == plain


def test_refusal_explains_more_than_a_crash_and_a_kill_more_than_an_error():
    error = RankEnd(rank=0, exit_code=1, time=1.0, message="RuntimeError: connection closed by peer")
    killed = RankEnd(rank=1, exit_code=-9, time=2.0)
    refused = RankEnd(rank=2, exit_code=4, time=3.0, message="no data")
    assert root_cause([error, killed, refused]) == refused
    assert root_cause([error, killed]) == killed


def test_earliest_error_is_the_cause_of_the_later_ones():
    later = RankEnd(rank=0, exit_code=1, time=2.0, message="RuntimeError: connection closed by peer")
    first = RankEnd(rank=1, exit_code=1, time=1.0, message="ValueError: boom")
    assert root_cause([later, first]) == first


def test_a_broken_connection_explains_nothing_however_early_it_was():
    lost = RankEnd(rank=0, exit_code=1, time=1.0, message="another rank failed", follows=True)
    silent = RankEnd(rank=1, exit_code=1, time=2.0)
    assert root_cause([lost, silent]) == silent


def test_refusal_on_every_rank_is_told_by_rank_0():
    ends = [RankEnd(rank=rank, exit_code=2, time=5.0 - rank, message="no") for rank in range(3)]
    assert root_cause(ends).rank == 0


def test_description_names_the_rank_the_way_and_its_last_lines():
    text = describe(RankEnd(1, -9, 0.0), 4, "a\nb", Path("rank1.log"))
    assert text == "rank 1 of 4 was killed by SIGKILL; the job was stopped.\nthe last lines of rank1.log:\n  a\n  b"
