from dataclasses import replace

import pytest

from lmtrain.report.comparing.choices import make_choices
from lmtrain.report.comparing.compared_run import read_compared_run
from lmtrain.report.runs.attempts import OwnSteps
from lmtrain.tracking.fork import Fork
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial
from tests.report.compared_folder import write


def choices_of(*folders):
    return make_choices([read_compared_run(folder) for folder in folders])


def test_runs_that_differ_by_seed_alone_are_one_choice_and_the_best_comes_first(tmp_path):
    found, repeated = choices_of(
        write(tmp_path / "a", lr=0.1, seed=1, values=(8.0, 3.0)),
        write(tmp_path / "b", lr=0.2, seed=1, values=(8.0, 2.0)),
        write(tmp_path / "c", lr=0.1, seed=2, values=(8.0, 4.0)),
    )
    assert [choice.label for choice in found] == ["optimizer.lr=0.2", "optimizer.lr=0.1"], "data=x is shared by all"
    assert [(choice.final.num, choice.final.mean) for choice in found] == [(1, 2.0), (2, 3.5)]
    assert found[1].final.standard_deviation == pytest.approx(0.5**0.5)
    assert repeated == {}


def test_a_seed_that_comes_twice_is_no_second_measurement(tmp_path):
    found, repeated = choices_of(write(tmp_path / "a"), write(tmp_path / "again"))
    assert found[0].final.num == 1
    assert repeated == {"again": "the settings and seed of a"}


def test_the_only_choice_of_a_search_is_called_by_its_trial_s_values(tmp_path):
    folder = write(tmp_path / "s/trial-0002", lr=0.1, words=["model=llama_micro", "optimizer.lr=0.1"])
    assert choices_of(folder)[0][0].label == "model=llama_micro optimizer.lr=0.1"
    trial = SweepTrial(number=2, values={"optimizer.lr": "0.1"}, runs=[SweepRun(folder=folder.name, seed=1)])
    SweepFile(name="s", kind="search", metric="m", fingerprint="f", command="c", trials=[trial]).save(folder.parent)
    assert choices_of(folder)[0][0].label == "optimizer.lr=0.1"


def test_settings_typed_alike_are_told_apart_by_their_values_or_else_by_a_name(tmp_path):
    old = write(tmp_path / "old", words=["optimizer=adamw"], lr=0.1)
    new = write(tmp_path / "new", words=["optimizer=adamw"], lr=0.2, values=(8.0, 1.0))
    assert [choice.label for choice in choices_of(old, new)[0]] == ["optimizer.lr=0.2", "optimizer.lr=0.1"]
    more = [write(tmp_path / f"x{n}", words=[], **dict.fromkeys("abc", n), d=n // 2) for n in range(2)]
    labels = [choice.label for choice in choices_of(*more)[0]]
    assert labels == ["a=0 b=0 c=0", "a=1 b=1 c=1"]


def test_tokens_to_a_target_lie_on_the_straight_line_between_two_measurements_unless_these_are_far_apart(tmp_path):
    (choice,), _ = choices_of(
        write(tmp_path / "a", seed=1, values=(8.0, 5.0, 4.0, 1.0)),
        write(tmp_path / "b", seed=2, values=(8.0, 7.0, 4.0, 3.0)),
    )
    assert choice.mean_curve == [(0.0, 8.0), (100.0, 6.0), (200.0, 4.0), (300.0, 2.0)]
    assert choice.tokens_to_reach(3.0) == pytest.approx(250.0)
    assert (choice.tokens_to_reach(9.0), choice.tokens_to_reach(2.0), choice.tokens_to_reach(1.9)) == (0.0, 300.0, None)
    # A curve falls steeply first: 7.0 may be reached after 10 tokens, and 5.0 after 110.
    assert (choice.tokens_to_reach(7.0), choice.reached_between(7.0)) == (None, (0.0, 100.0))
    assert (choice.tokens_to_reach(5.0), choice.reached_between(5.0)) == (None, (100.0, 200.0))
    late = replace(choice, runs=tuple(replace(run, curve=run.curve[2:]) for run in choice.runs))
    assert late.reached_between(5.0) == (0.0, 200.0), "where it was not measured before, nobody knows"
    own = OwnSteps(last=4, tokens_per_step=50, fork=Fork(checkpoint=tmp_path / "c", step=3))
    forked = replace(late, runs=tuple(replace(run, own=own) for run in late.runs))
    assert (forked.reached_between(5.0), forked.tokens_to_reach(5.0)) == ((150.0, 200.0), None), "the fork's own tokens"
    assert (choice.reached_between(4.0), choice.reached_between(1.9)) == ((200.0, 200.0), None)


def test_the_curve_of_seeds_that_a_budget_of_time_ended_apart_ends_with_the_mean_of_their_ends(tmp_path):
    (choice,), _ = choices_of(
        write(tmp_path / "a", seed=1, values=(8.0, 5.0, 4.0)),
        write(tmp_path / "b", seed=2, values=(8.0, 7.0, 4.0, 3.0, 2.0)),
    )
    assert choice.ends == (200.0, 400.0)
    assert choice.mean_curve == [(0.0, 8.0), (100.0, 6.0), (200.0, 4.0), (300.0, 3.0)]
    assert choice.tokens_to_reach(choice.final.mean) == 300.0
