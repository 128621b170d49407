from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.ledger.log_line import implied_speed
from lmtrain.report.ledger.run_ledger import read_ledger
from lmtrain.tracking.run_log import RunLog
from tests.points import append_point
from tests.report.ledger_folder import write


def write_log(folder: Path) -> None:
    """Log steps of attempt 1, seconds apart, one of attempt 2, and a measurement in between."""
    log = RunLog(folder)
    for step, moment in ((6, 1010.0), (8, 1012.0), (10, 1016.0), (12, 1066.0)):
        append_point(log, step, step * 1000, {"train/loss": 2.0}, time=moment)
        append_point(log, step, step * 1000, {"validation/loss": 2.0}, time=moment + 1)
    log.close()


def test_speed_is_what_was_done_between_two_lines_and_mfu_follows(tmp_path):
    folder = write(tmp_path / "a")
    write_log(folder)
    line = implied_speed(folder, read_ledger(folder), step=8)
    assert (line.since_step, line.tokens_per_second) == (6, 1000.0)
    assert line.mfu_palm == pytest.approx(6e6 * 1000 / 2e9)
    assert implied_speed(folder, read_ledger(folder), step=10).tokens_per_second == 500.0
    # attempt 1 lasted until 1049, and attempt 2 began at 1060
    assert implied_speed(folder, read_ledger(folder), step=12).seconds == 1049 - 1016 + 1066 - 1060


def test_a_line_s_own_share_and_peak_come_before_those_of_the_run(tmp_path):
    folder = write(tmp_path / "a")
    write_log(folder)
    timed = {"speed/tokens_per_second": 400.0, "speed/mfu_palm": 0.1, "speed/loss_share": 0.5}
    append_point(RunLog(folder), 8, 8000, timed, time=1012.0)
    line = implied_speed(folder, read_ledger(folder), step=8)
    assert (line.tokens_per_second, line.trained_share) == (500.0, 0.5)
    assert line.mfu_palm == pytest.approx(0.125)
    assert line.mfu_causal == read_ledger(folder).mfu_at(500.0, "causal")


@pytest.mark.parametrize(("step", "nearest"), [(6, 8), (9, 8), (99, 12), (0, 8)])
def test_a_step_without_a_line_and_one_before_it_is_refused_with_the_nearest(tmp_path, step, nearest):
    folder = write(tmp_path / "a")
    write_log(folder)
    with pytest.raises(ConfigurationError, match=f"nearest valid: {nearest}"):
        implied_speed(folder, read_ledger(folder), step=step)
