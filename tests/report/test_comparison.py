"""Comparisons: choices with their noise, differences, targets, the verdict on a run, the page and the chart."""

import math
import random

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.compared_runs import make_choices, read_compared_run
from lmtrain.report.comparison import compare
from lmtrain.report.comparison_page import page
from lmtrain.report.show import plain_text
from lmtrain.report.spread import difference
from tests.report.compared_folder import write


def by_seed(*values, first=1):
    return {str(seed): value for seed, value in enumerate(values, start=first)}


def test_the_same_seeds_are_compared_seed_by_seed():
    luck = [0.0, 5.0, -3.0]
    found = difference(by_seed(*(1.0 + x for x in luck)), by_seed(*(0.9 + x for x in luck)))
    assert found.is_paired
    assert (found.mean, found.plus_minus) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))
    # differences 0.1, 0.2, 0.3: deviation 0.1, 2 degrees of freedom
    noisy = difference(by_seed(1.1, 6.2, -1.7), by_seed(1.0, 6.0, -2.0))
    assert noisy.plus_minus == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert noisy.is_noise


def test_the_seeds_that_both_have_are_compared_and_too_few_of_them_are_not():
    many = by_seed(1.0, 2.0, 6.0)
    assert difference(by_seed(1.5), many).mean == pytest.approx(0.5), "seed 1 beside seed 1, not beside the mean of 3"
    two = difference(by_seed(1.5, 2.5), many)
    assert (two.mean, two.is_paired) == (pytest.approx(0.5), True)
    few = difference(by_seed(5.0, 5.2, first=3), many)
    assert (few.mean, few.plus_minus) == (pytest.approx(2.1), None), "both have more seeds than the one they share"


def test_an_interval_of_95_percent_holds_the_true_difference_that_often():
    rng = random.Random(0)
    held = 0
    for _ in range(200):
        one = by_seed(*(rng.gauss(1.0, 0.1) for _ in range(3)))
        other = by_seed(*(rng.gauss(0.0, 0.3) for _ in range(3)))
        found = difference(one, other)
        assert found.plus_minus is not None
        held += abs(found.mean - 1.0) <= found.plus_minus
    assert 0.90 <= held / 200 <= 0.995  # three standard errors of a share of 0.95 in 200


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


def test_tokens_to_a_target_lie_on_the_straight_line_between_two_measurements(tmp_path):
    (choice,), _ = choices_of(
        write(tmp_path / "a", seed=1, values=(8.0, 5.0, 4.0, 1.0)),
        write(tmp_path / "b", seed=2, values=(8.0, 7.0, 4.0, 3.0)),
    )
    assert choice.mean_curve == [(0.0, 8.0), (100.0, 6.0), (200.0, 4.0), (300.0, 2.0)]
    assert choice.tokens_to_reach(3.0) == pytest.approx(250.0)
    assert (choice.tokens_to_reach(9.0), choice.tokens_to_reach(2.0), choice.tokens_to_reach(1.9)) == (0.0, 300.0, None)


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


def test_a_named_baseline_sets_the_target(tmp_path):
    found = compare(sweep(tmp_path), baseline="optimizer.lr=0.2")
    assert (found.baseline.label, found.target) == ("optimizer.lr=0.2", pytest.approx(3.1))
    assert found.reaches["optimizer.lr=0.1"].of_baseline == pytest.approx(0.5)
    never = compare(sweep(tmp_path / "x"), target=1.0)
    assert {reach.tokens for reach in never.reaches.values()} == {None}
    with pytest.raises(ConfigurationError, match=r"^baseline: .*optimizer.lr=0.1, optimizer.lr=0.2"):
        compare(sweep(tmp_path / "y"), baseline="adam")


def test_runs_that_did_not_finish_do_not_count_and_are_named(tmp_path):
    runs = [*sweep(tmp_path), write(tmp_path / "going", lr=0.1, seed=3, status="RUNNING")]
    found = compare(runs)
    assert found.left_out.keys() == {"going"}
    assert found.choices[0].final.num == 2
    with pytest.raises(DataError, match=r"No run has finished.*failed: failed, exit code 3 at step 2 of 2"):
        compare([write(tmp_path / "failed", status="FAILED")])


@pytest.mark.parametrize(
    ("other", "metric", "said"),
    [
        ({"source": "another", "split_bytes": 7}, "validation/bits_per_byte", r"a book \(900 of .*, another \(7 held"),
        ({"num_bytes": 200}, "validation/bits_per_byte", "Between 200 and 900 bytes .* not the same part"),
        ({"tokenizer": "t2"}, "validation/loss", "tokenizers differ.*validation/bits_per_byte compares"),
    ],
)
def test_scores_of_different_texts_parts_and_tokenizers_are_refused(tmp_path, other, metric, said):
    with pytest.raises(DataError, match=said):
        compare([write(tmp_path / "a"), write(tmp_path / "b", lr=0.2, held_out=other)], metric=metric)


def test_the_page_shows_means_noise_and_what_it_took(tmp_path):
    text = plain_text(page(compare(sweep(tmp_path))))
    assert "validation/bits_per_byte, 900 held-out bytes of a book" in text
    assert [line.split() for line in text.splitlines() if line.startswith("optimizer.lr") and " is " not in line] == [
        ["optimizer.lr=0.1", "2", "2.1000", "0.1414", "baseline", "200"],
        ["optimizer.lr=0.2", "2", "3.1000", "0.2121", "+1.0000", "±", "0.6353", "200"],
        ["optimizer.lr=0.1", "100", "100%", "1e+03", "2s"],
        ["optimizer.lr=0.2", "200", "200%", "2e+03", "4s"],
    ]
    verdict = "optimizer.lr=0.1 is 1.0000 ± 0.6353 better than optimizer.lr=0.2: more than noise"
    assert verdict in " ".join(text.split())
