from lmtrain.report.comparing.comparison import compare
from lmtrain.report.comparing.comparison_page import text_of
from tests.report.compared_folder import point, write
from tests.report.comparing.test_comparison import sweep


def test_the_page_shows_means_noise_and_what_it_took(tmp_path):
    text = text_of(compare(sweep(tmp_path)))
    assert "validation/bits_per_byte, 900 held-out bytes of a book" in text
    assert "deviation  difference ± 95%" in text
    assert "FLOPs  work in steps" in text, "the sum over steps; a step takes less"
    assert [line.split() for line in text.splitlines() if line.startswith("optimizer.lr") and " is " not in line] == [
        ["optimizer.lr=0.1", "2", "2.1000", "0.1414", "baseline", "200"],
        ["optimizer.lr=0.2", "2", "3.1000", "0.2121", "+1.0000", "±", "0.6353", "200"],
        ["optimizer.lr=0.1", "100", "100%", "1e+03", "2s"],
        ["optimizer.lr=0.2", "200", "200%", "2e+03", "4s"],
    ]
    verdict = "optimizer.lr=0.1 is 1.0000 better than optimizer.lr=0.2, 14.1 deviations, 2 seeds: more than noise"
    assert verdict in " ".join(text.split())


def test_scores_of_conversations_are_of_the_assistants_words(tmp_path):
    runs = [write(tmp_path / name, lr=lr, masked=True) for name, lr in (("a", 0.1), ("b", 0.2))]
    text = " ".join(text_of(compare(runs)).split())
    assert "validation/bits_per_byte, the assistant's words in a book" in text
    assert "Scores are of the assistant's words, 900 of 1,000 held-out bytes." in text


def test_a_difference_within_its_noise_says_so_and_a_target_may_never_be_reached(tmp_path):
    rows = [(0.1, 1, 2.0), (0.1, 2, 2.9), (0.2, 1, 2.1), (0.2, 2, 2.9)]
    runs = [write(tmp_path / f"{lr}-{seed}", lr=lr, seed=seed, values=(8.0, last)) for lr, seed, last in rows]
    text = text_of(compare(runs, target=1.0))
    assert "(noise)" in text
    assert "is 0.0500 better than optimizer.lr=0.2, 0.7 deviations, 2 seeds: within noise" in " ".join(text.split())
    assert "never" in text


def test_a_target_between_measurements_far_apart_is_said_to_lie_between_them(tmp_path):
    runs = [write(tmp_path / "a", values=(8.0, 2.0)), write(tmp_path / "b", lr=0.2, values=(8.0, 3.0, 2.5))]
    text = text_of(compare(runs))
    assert text.count("between 0 and 100") == 1
    assert ["optimizer.lr=0.2", "200", "2e+03", "4s"] in [line.split() for line in text.splitlines()]


def test_a_run_that_is_left_out_as_repeated_decides_nothing(tmp_path):
    runs = [write(tmp_path / name, lr=lr) for name, lr in (("a", 0.1), ("b", 0.2))]
    runs.append(write(tmp_path / "again", lr=0.1, held_out={"num_bytes": 200}))
    text = " ".join(text_of(compare(runs)).split())
    assert "have the same score" in text
    assert "again: the settings and seed of a" in text


def test_scores_of_other_parts_of_a_text_have_no_difference_no_verdict_and_no_target(tmp_path):
    whole, part = write(tmp_path / "a"), write(tmp_path / "b", lr=0.2, held_out={"num_bytes": 200}, values=(8, 1, 1))
    found = compare([whole, part])
    text = " ".join(text_of(found).split())
    for shown in (
        "validation/bits_per_byte, parts of the 1,000 held-out bytes of a book",
        "optimizer.lr=0.1 1 2.0000 900 200",
        "optimizer.lr=0.2 1 1.0000 200 200",
        "no score of one part compares with another's",
    ):
        assert shown in text
    for hidden in ("better", "baseline", "To reach", "difference", "%"):
        assert hidden not in text
    for choice in found.to_json()["choices"]:
        assert (choice["difference"], choice["to_reach_target"]) == (None, None)
    assert "they do not compare" in found.curves_title


def test_training_losses_compare_whatever_part_was_held_out(tmp_path):
    runs = [write(tmp_path / f"{n}", lr=n, held_out={"num_bytes": n}) for n in (100, 900)]
    for n, folder in enumerate(runs):
        with (folder / "metrics.jsonl").open("a") as log:
            log.writelines(point(step, {"train/loss": 3.0 + n}) for step in (1, 2))
    text = " ".join(text_of(compare(runs, metric="train/loss")).split())
    assert "is 1.0000 better" in text
    assert "part" not in text


def test_what_is_left_out_and_what_is_not_known_is_said(tmp_path):
    runs = [write(tmp_path / "a"), write(tmp_path / "b", lr=0.2), write(tmp_path / "c", lr=0.3, status="KILLED")]
    text = text_of(compare(runs))
    assert "optimizer.lr=0.1 and optimizer.lr=0.2 have the same score" in text
    assert "c: killed, exit code 3 at step 2 of 2" in text
