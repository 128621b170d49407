import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.comparing.compared_run import read_compared_run
from tests.report.compared_folder import point, write, write_readings


def test_a_run_has_a_curve_settings_without_seed_and_the_words_that_were_typed(tmp_path):
    run = read_compared_run(write(tmp_path / "a", seed=7))
    assert run.curve == [(0.0, 8.0), (100.0, 4.0), (200.0, 2.0)]
    assert (run.seed, run.settings, run.words) == ("7", {"optimizer.lr": "0.1"}, ("optimizer.lr=0.1", "data=x"))
    assert (run.tokens, run.final, run.trouble) == (200.0, 2.0, None)
    assert (run.flops_per_token, run.tokens_per_second) == (10.0, 50.0)
    assert run.held_out.text == ("a book", 1000, False)


def test_seconds_are_those_of_the_steps_by_the_run_s_accounts(tmp_path):
    folder = write(tmp_path / "a")
    write_readings(folder, [0.0, 3.0, 4.0], preempted=90.0)
    run = read_compared_run(folder)
    assert [run.seconds_at(tokens) for tokens in (0, 50, 100, 150, 200, 900)] == [0.0, 1.5, 3.0, 3.5, 4.0, 4.0]
    (folder / "events/rank0.jsonl").unlink()
    assert read_compared_run(folder).seconds_at(100) is None, "nothing is known, and nothing guessed"


def test_how_a_run_is_executed_is_none_of_its_settings(tmp_path):
    more = {"trainer": {"devices": 2}, "logger": {"x": 1}, "data": {"num_workers": 4, "weights": 1}}
    assert read_compared_run(write(tmp_path / "a", **more)).settings == {"optimizer.lr": "0.1", "data.weights": "1"}


def test_a_run_that_did_not_end_well_says_why(tmp_path):
    going = read_compared_run(write(tmp_path / "a", status="RUNNING", values=(8.0, 4.0)))
    assert going.trouble == "killed, exit code 3 at step 1 of 2"
    diverged = read_compared_run(write(tmp_path / "b", values=(8.0, float("nan"))))
    assert diverged.trouble == "diverged: its last value is nan"
    nothing = read_compared_run(write(tmp_path / "c", status="FAILED", values=()))
    assert nothing.trouble == "failed, exit code 3 at step 0 of 2"


def test_a_training_curve_is_averaged_and_ends_where_the_run_does(tmp_path):
    folder = write(tmp_path / "a", values=())
    (folder / "metrics.jsonl").write_text("".join(point(step, {"train/loss": step % 2}) for step in range(1, 401)))
    run = read_compared_run(folder, metric="train/loss")
    assert (len(run.curve), run.tokens, run.final) == (40, 40_000.0, 0.5)


def test_a_metric_that_a_run_lacks_or_that_has_no_better_is_refused(tmp_path):
    folder = write(tmp_path / "a")
    with pytest.raises(ConfigurationError, match=r"a has no validaton/loss; it has .*Did you mean 'validation/loss'"):
        read_compared_run(folder, metric="validaton/loss")
    under_way = read_compared_run(write(tmp_path / "b", status="FAILED"), metric="validation/else/loss")
    assert (under_way.curve, under_way.trouble) == ([], "failed, exit code 3 at step 2 of 2"), "left out, and told"
    with pytest.raises(ConfigurationError, match="none that is better where it is lower"):
        read_compared_run(folder, metric="speed/tokens_per_second")


def test_a_run_without_its_settings_is_refused(tmp_path):
    folder = write(tmp_path / "a")
    (folder / "attempts/1/job.json").unlink()
    with pytest.raises(DataError, match="no status or no settings"):
        read_compared_run(folder)
