import json

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.comparing.comparison import compare
from tests.report.compared_folder import point, write, write_readings


def sweep(folder):
    """Write two choices with two seeds each: 2.0 and 2.2 after 200 tokens, 2.95 and 3.25 after as many."""
    rows = [(0.1, 1, 2.0), (0.1, 2, 2.2), (0.2, 1, 2.95), (0.2, 2, 3.25)]
    return [write(folder / f"{lr}-{seed}", lr=lr, seed=seed, values=(8.0, last + 1, last)) for lr, seed, last in rows]


def test_choices_stand_beside_the_best_with_their_noise_and_reach_what_the_worst_does(tmp_path):
    found = compare(sweep(tmp_path))
    assert found.baseline.label == "optimizer.lr=0.1"
    beside = found.differences["optimizer.lr=0.2"]
    # seed by seed 0.95 and 1.05: deviation 0.0707, standard error 0.05, of which 12.7062 by 1 degree of freedom
    assert (beside.mean, beside.plus_minus) == (pytest.approx(1.0), pytest.approx(12.7062 * 0.05, rel=1e-3))
    assert found.target == pytest.approx(3.1)
    best, last = (found.reaches[choice.label] for choice in found.choices)
    assert (best.tokens, best.flops, best.seconds) == (pytest.approx(100.0), pytest.approx(1000.0), pytest.approx(2.0))
    assert (last.tokens, last.of_baseline) == (pytest.approx(200.0), pytest.approx(2.0))


def test_a_run_reached_nothing_by_scores_of_other_bytes(tmp_path):
    extended = write(tmp_path / "longer", lr=0.1, values=(8.0, 1.0, 6.0, 3.0), read=(9, 9, 90, 90))
    found = compare(
        [extended, write(tmp_path / "other", lr=0.2, values=(8.0, 7.0, 4.0), held_out={"num_bytes": 90})], target=4.5
    )
    reached = next(found.reaches[choice.label].tokens for choice in found.choices if choice.runs[0].name == "longer")
    assert reached == pytest.approx(250.0)
    assert "longer: Left out, as they do not compare: scores of other held-out text, 2 of 9 bytes." in found.notes


def test_tokens_without_loss_take_no_more_time_than_they_took(tmp_path):
    chat = write(tmp_path / "chat", lr=0.1)
    with (chat / "metrics.jsonl").open("a") as log:  # a tenth of the tokens had loss
        log.write(point(2, {"speed/tokens_per_second": 5.0, "speed/timed_seconds": 4.0}))
    found = compare([chat, write(tmp_path / "b", lr=0.2)], target=2.0)
    assert {reach.seconds for reach in found.reaches.values()} == {4.0}


def test_a_fork_says_whose_tokens_it_counts_and_takes_its_own_seconds(tmp_path):
    fork = write(tmp_path / "fork", lr=0.1, values=(8.0, 4.0, 2.0, 1.0))
    (fork / "fork.json").write_text(json.dumps({"checkpoint": "runs/dog/checkpoints/step_00000001", "step": 1}))
    write_readings(fork, [0.0, 5.0, 10.0], first=1)
    found = compare([fork, write(tmp_path / "b", lr=0.2)], target=2.0)
    assert found.reaches["optimizer.lr=0.1"].seconds == pytest.approx(5.0)
    assert (
        "fork: 100 of its tokens, with their FLOPs, are of runs/dog, no longer there; its seconds are its own."
        in found.notes
    )


def test_a_named_baseline_sets_the_target(tmp_path):
    found = compare(sweep(tmp_path), baseline="optimizer.lr=0.2")
    assert (found.baseline.label, found.target) == ("optimizer.lr=0.2", pytest.approx(3.1))
    assert found.reaches["optimizer.lr=0.1"].of_baseline == pytest.approx(0.5)
    never = compare(sweep(tmp_path / "x"), target=1.0)
    assert {reach.tokens for reach in never.reaches.values()} == {None}
    with pytest.raises(ConfigurationError, match=r"the choices are optimizer.lr=0.1, optimizer.lr=0.2"):
        compare(sweep(tmp_path / "y"), baseline="adam")


def test_words_that_name_two_choices_are_refused(tmp_path):
    folders = [write(tmp_path / f"{n}", lr=n, words=["optimizer=adamw", f"x={n}"]) for n in range(2)]
    other = write(tmp_path / "z", lr=9, words=["optimizer=muon"])
    with pytest.raises(ConfigurationError, match="names 2 choices"):
        compare([*folders, other], baseline="optimizer=adamw")
    whole = write(tmp_path / "whole", lr=8, words=["optimizer=adamw"])
    assert compare([*folders, other, whole], baseline="optimizer=adamw").baseline.runs[0].name == "whole"


def test_runs_of_one_name_in_two_folders_are_told_apart(tmp_path):
    untyped = [write(tmp_path / name / "a", lr=0.1, words=[], seed=n) for n, name in enumerate(("one", "two"))]
    stopped = [write(tmp_path / name / "b", status="RUNNING") for name in ("one", "two")]
    repeated = write(tmp_path / "three/a", lr=0.1, words=[])
    found = compare([*untyped, *stopped, repeated])
    assert [run.name for choice in found.choices for run in choice.runs] == ["one/a", "two/a"]
    assert found.left_out.keys() == {"one/b", "two/b", "three/a"}
    labels = [choice.label for choice in compare([untyped[0], write(tmp_path / "four/a", depth=2, words=[])]).choices]
    assert len(set(labels)) == 2


def test_a_finished_run_without_its_log_is_left_out(tmp_path):
    lost = write(tmp_path / "lost", lr=9.0)
    (lost / "metrics.jsonl").unlink()
    found = compare([*sweep(tmp_path / "kept"), lost])
    assert found.left_out == {"lost": "no score in lost/metrics.jsonl"}


def test_seeds_that_their_time_ended_at_other_steps_have_their_mean_tokens(tmp_path):
    values = {1: (8.0, 4.0), 2: (8.0, 4.0, 3.0, 2.0)}
    runs = [write(tmp_path / f"s{seed}", seed=seed, values=each) for seed, each in values.items()]
    found = compare(runs)
    (choice,) = found.choices
    assert (choice.final.mean, choice.tokens, choice.flops) == (3.0, 200.0, 2000.0)
    assert found.notes[0].startswith(
        "optimizer.lr=0.1 data=x: its seeds ended between 100 and 300 tokens; its curve is the mean"
    )


def test_runs_that_did_not_finish_do_not_count_and_are_named(tmp_path):
    runs = [*sweep(tmp_path), write(tmp_path / "going", lr=0.1, seed=3, status="RUNNING")]
    found = compare(runs)
    assert found.left_out.keys() == {"going"}
    assert found.choices[0].final.num == 2
    with pytest.raises(DataError, match=r"No run has finished.*failed: failed, exit code 3 at step 2 of 2"):
        compare([write(tmp_path / "failed", status="FAILED")])


def test_numbers_of_different_texts_are_refused(tmp_path):
    runs = [write(tmp_path / "a"), write(tmp_path / "b", lr=0.2, held_out={"source": "another", "split_bytes": 7})]
    said = r"a was measured on a book \(900 of 1,000 held-out bytes\), b on another \(7 held"
    with pytest.raises(DataError, match=said):
        compare(runs)


def test_nats_of_different_tokenizers_are_refused_and_bits_per_byte_compare_with_a_note(tmp_path):
    runs = [write(tmp_path / "a"), write(tmp_path / "b", lr=0.2, held_out={"tokenizer": "t2"})]
    with pytest.raises(DataError, match=r"different tokenizers.*use --metric validation/bits_per_byte"):
        compare(runs, metric="validation/loss")
    assert any("tokenizers differ" in note for note in compare(runs).notes)


def test_notes_tell_of_other_budgets_other_parts_and_single_seeds(tmp_path):
    runs = [
        write(tmp_path / "a", held_out={"num_bytes": 900}),
        write(tmp_path / "b", lr=0.2, held_out={"num_bytes": 400}, values=(8.0, 2.0)),
    ]
    parts, budgets, seeds = compare(runs).notes
    effect = compare(runs, target=1.5, baseline="optimizer.lr=0.1").notes[-1]
    assert effect.startswith("--baseline optimizer.lr=0.1 and --target 1.5 have no effect here: ")
    assert "400 and 900 bytes" in parts
    assert "from 1e+03 to 2e+03 FLOPs" in budgets
    assert "the noise is not known" in seeds
    assert compare(sweep(tmp_path / "even")).notes == ()


def test_the_comparison_is_json(tmp_path):
    found = json.loads(json.dumps(compare(sweep(tmp_path)).to_json()))
    assert found["choices"][1]["difference"]["is_noise"] is False
    assert found["choices"][0]["seeds"] == ["1", "2"]
    assert found["choices"][0]["mean_curve"] == [[0.0, 8.0], [100.0, pytest.approx(3.1)], [200.0, pytest.approx(2.1)]]
