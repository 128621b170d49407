"""The facts of a run, and its held-out scores."""

import json
from pathlib import Path

import pytest

from lmtrain.report.runs.facts import command, read_run, unkept_best
from lmtrain.report.runs.held_out import (
    comparable,
    data_behind,
    held_out_score,
    held_out_text,
    is_of_earlier_data,
    left_out_words,
    why_unranked,
)
from lmtrain.report.runs.listing import in_brief
from lmtrain.tracking.fork import read_fork
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.sweep_file import UNKNOWN, HeldOutText
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts
from tests.points import append_point
from tests.report.runs_on_disk import write_data


@pytest.fixture
def folder(tmp_path):
    """A run as its callbacks leave it, in numbers that are easy to check."""
    run = tmp_path / "runs" / "cat"
    (run / "attempts" / "1").mkdir(parents=True)
    write(run / "run.json", {"name": "cat"})
    write(run / "status.json", {"status": "FINISHED", "mlflow_run_id": "4f2a"})
    write(run / "plan.json", {"batch": {"context_tokens": 256}, "horizon": {"limited_by": "tokens", "tokens": 3000}})
    references = {"validation": {"text_bytes": 5000, "gzip_bits_per_byte": 1.93, "xz_bits_per_byte": 1.586}}
    write(run / "dataset.json", {"splits": {"validation": {"text_bytes": 5000}}, "references": references})
    overrides = ["optimizer.lr=0.02", "run.name=cat", "resume=never"]
    write(run / "attempts" / "1" / "job.json", {"overrides": overrides, "config": {"optimizer": {"lr": 0.02}}})
    for step, score in ((100, 1.5), (200, 1.4), (300, 1.45)):
        checkpoint = run / "checkpoints" / f"step_{step:08d}"
        checkpoint.mkdir(parents=True)
        facts = {"step": step, "tokens": 10 * step, "identity": {}, "metrics": {"validation/bits_per_byte": score}}
        write(checkpoint / "manifest.json", facts | {"files": {}})
    log = RunLog(run)
    append_point(log, 0, 0, {"validation/bits_per_byte": 8.03, "validation/num_bytes": 4999})
    append_point(log, 100, 1000, {"speed/tokens_per_second": 100.0, "speed/mfu_palm": 0.1, "cost/usd": 0.5})
    append_point(log, 300, 3000, {"speed/tokens_per_second": 400.0, "speed/mfu_palm": 0.4, "cost/usd": 1.5})
    append_point(log, 300, 3000, {"validation/bits_per_byte": 1.45, "validation/num_bytes": 4999})
    (run / "samples.jsonl").write_text('{"step": 100, "text": "old"}\n{"step": 300, "prompt": "a", "text": "new"}\n')
    return run


def write(path, content):
    path.write_text(json.dumps(content))


def test_speed_is_all_tokens_over_all_seconds_not_a_mean_of_speeds(folder):
    facts = read_run(folder)
    assert facts.tokens_per_second == pytest.approx(3000 / (10 + 5))
    assert facts.seconds == pytest.approx(15)
    assert facts.mfu_palm == pytest.approx(0.2)  # proportional to speed
    assert facts.usd == 1.5
    assert facts.unkept_best is None


def test_early_stopping_at_the_last_step_is_known_by_its_event(folder):
    (folder / "events").mkdir()
    for name, step, known in (("early_stopping", 200, None), ("early_stopping_at_the_end", 300, True)):
        row = {"name": name, "start": 1.0, "step": step}
        (folder / "events/rank0.jsonl").write_text(json.dumps(row) + "\n")
        assert read_run(folder).early_stop == (name if known else None)


def test_padding_is_in_the_seconds_and_not_in_the_speed(folder):
    log = RunLog(folder)
    append_point(log, 500, 5000, {"speed/tokens_per_second": 50.0, "speed/timed_seconds": 20.0})
    facts = read_run(folder)
    assert facts.seconds == pytest.approx(10 + 5 + 20)
    assert facts.tokens_per_second == pytest.approx((3000 + 1000) / 35)
    assert facts.loss_share == pytest.approx(4000 / 5000)


def test_the_untimed_first_step_is_no_padding(tmp_path):
    for step, tokens in ((4, 4000), (8, 8000)):
        timed = {"speed/tokens_per_second": 100.0, "speed/timed_seconds": 30.0 if step == 4 else 40.0}
        append_point(RunLog(tmp_path), step, tokens, timed)
    assert read_run(tmp_path).loss_share == 1.0


def test_neither_is_the_first_step_of_a_resume_nor_what_a_killed_attempt_did_behind_its_last_point(tmp_path):
    rows = [{"name": "attempt", "start": 0.0, "attempt": 1}, {"name": "ledger", "start": 1.0, "step": 0},
            {"name": "attempt", "start": 90.0, "attempt": 2}, {"name": "ledger", "start": 91.0, "step": 6}]  # fmt: skip
    (tmp_path / "events").mkdir()
    (tmp_path / "events/rank0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, seconds in ((4, 30.0), (9, 20.0)):  # steps 2 to 4, and 8 and 9
        timed = {"speed/tokens_per_second": 100.0, "speed/timed_seconds": seconds}
        append_point(RunLog(tmp_path), step, step * 1000, timed)
    assert read_run(tmp_path).loss_share == 1.0


def test_scores_of_an_earlier_checkpoint_posted_later_do_not_set_the_run_back(folder):
    append_point(RunLog(folder), 200, 2000, {"evaluation/validation/bits_per_byte": 1.4})
    assert (read_run(folder).step, read_run(folder).tokens) == (300, 3000)
    assert (in_brief(folder).step, in_brief(folder).tokens) == (300, 3000)


def test_held_out_scores_are_the_first_and_the_last(folder):
    held_out = read_run(folder).held_out
    assert held_out is not None
    assert (held_out.before, held_out.after, held_out.is_whole) == (8.03, 1.45, True)
    assert held_out.references == {"gzip -9": 1.93, "xz -9e": 1.586}


def test_best_and_last_checkpoint_differ(folder):
    facts = read_run(folder)
    assert facts.best is not None
    assert facts.last is not None
    assert (facts.best.step, facts.last.step) == (200, 300)


def test_a_command_keeps_what_it_does_not_replace(folder):
    facts = read_run(folder)
    assert command(facts, "run.name=cat", "resume=", "budget.tokens=6K") == (
        "python train.py optimizer.lr=0.02 run.name=cat budget.tokens=6K"
    )
    assert (
        command(facts, "run.name=", "resume=", "optimizer.lr=1,2", sweep=True) == "python train.py -m optimizer.lr=1,2"
    )
    assert command(facts, "source.paths=[my/notes]").endswith(" 'source.paths=[my/notes]'")


@pytest.mark.parametrize(("key", "budget"), [("hours", 2.0), ("usd", 24.0), ("tokens_per_parameter", 30.0)])
def test_a_budget_is_read_in_its_own_unit(folder, key, budget):
    horizon = {"limited_by": key, "tokens": 3000, "seconds": 7200.0}
    plan = {"batch": {"num_ranks": 4}, "horizon": horizon, "cost": {"usd_per_gpu_hour": 3.0}}
    write(folder / "plan.json", plan | {"parameters": {"total": 500, "active": 100}})
    facts = read_run(folder)
    assert (facts.budget_key, facts.budget) == (f"budget.{key}", budget)


def test_a_fork_took_the_time_of_its_own_steps(folder):
    write(folder / "fork.json", {"checkpoint": "runs/dog/checkpoints/step_00000100", "step": 100})
    facts = read_run(folder)
    assert facts.seconds == pytest.approx(5)
    assert (facts.own.fork, facts.own.first) == (read_fork(folder), 100)


def test_the_rate_to_type_again_is_that_of_the_base_which_scaling_derived_from(folder):
    assert read_run(folder).lr == 0.02
    for foreign in ({"optimizer": {"lr": "fast"}}, {"optimizer": "adamw", "scaling": []}):
        write(folder / "attempts" / "1" / "job.json", {"overrides": [], "config": foreign})
        assert read_run(folder).lr is None
    config = {"optimizer": {"lr": 0.0283}, "scaling": {"base": {"optimizer.lr": 0.02}}}
    write(folder / "attempts" / "1" / "job.json", {"overrides": [], "config": config})
    assert read_run(folder).lr == 0.02


WHOLE, READ = "the assistant's words, 300 of 1,000 bytes", "validation/read_tokens"


def score(folder, *read, num_bytes=300, masked=True, data=("one", "one")):
    """Return the score of a run that read so many of its split's 200 tokens, before and after training.

    `data` is of an attempt each, the first at step 0 and the second at step 1; the last is that of its dataset.json.
    """
    shards = [{"file": "a", **({"mask_sha256": "0"} if masked else {})}]
    write_data(folder, *data)
    dataset = {
        "name": "a book",
        "fingerprint": data[-1],
        "splits": {"validation": {"text_bytes": 1000, "num_tokens": 200, "shards": shards}},
        "references": {"validation": {"gzip_bits_per_byte": 1.9}},
    }
    (folder / "dataset.json").write_text(json.dumps(dataset))
    points = [
        Point(
            float(step), step, step, {"validation/bits_per_byte": 2.0 - step, "validation/num_bytes": num_bytes + step}
        )
        for step in (0, 1)
    ]
    for point, tokens in zip(points, read, strict=False):
        point.metrics[READ] = tokens
    found = held_out_score(points, {}, folder, split="validation", last_step=1)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ((200, 200), ", all conversations"),
        ((40, 100), ", the first 50.0% of the conversations"),
        ((), ""),  # of a run that did not note it
    ],
)
def test_a_score_of_conversations_is_of_the_assistants_words_beside_no_compressor(tmp_path, read, words):
    found = score(tmp_path, *read, num_bytes=299)
    assert found.part_words == WHOLE + words
    assert "gzip" not in str(found.worst_first()), "it read the users' turns too"


@pytest.mark.parametrize(
    ("data", "before"),
    [
        (("one", "two"), "before training, of another text"),
        (("one", "one"), "before training, of 99 bytes"),
        ((None, "one"), "before training, of 99 bytes"),
        (("one", "one", "two"), "before training, of 99 bytes"),
    ],
)
def test_a_score_of_other_data_is_of_another_text_and_no_part_of_this_one(tmp_path, data, before):
    found = score(tmp_path, 20, 20, num_bytes=99, masked=False, data=data)
    assert found.before_words == before
    points = [Point(1.0, 1, 1, {"validation/num_bytes": 100})]
    text = held_out_text(tmp_path, points, split="validation")
    if data[-1] == "two" and len(data) == 3:
        assert found.part_words == "the text before the change of data, 100 bytes"
        assert "gzip" not in str(found.worst_first()), "a result of the text to come"
        assert text.words == "a book before the change of data (100 held-out bytes)"
    else:
        assert text.words == "a book (100 of 1,000 held-out bytes)"


def text(*, source="notes", split_bytes=5000, num_bytes=5000, tokenizer="t"):
    return HeldOutText(source=source, split_bytes=split_bytes, num_bytes=num_bytes, tokenizer=tokenizer)


def test_scores_are_ranked_on_one_part_of_one_text_and_nats_of_one_tokenizer():
    bits, loss = "validation/bits_per_byte", "validation/loss"
    assert why_unranked([text(), text(num_bytes=4990), text(source=UNKNOWN)], metric=bits) is None
    assert why_unranked([text(), text(tokenizer="u")], metric=bits) is None
    assert "not the same part" in str(why_unranked([text(), text(num_bytes=100)], metric=bits))
    assert why_unranked([text(), text(num_bytes=100)], metric="train/loss") is None, "not of the held-out text"
    assert "texts differ" in str(why_unranked([text(), text(split_bytes=6000)], metric="train/loss"))
    assert "do not compare between tokenizers" in str(why_unranked([text(), text(tokenizer="u")], metric=loss))


def points(*read):
    scored = [{"validation/bits_per_byte": 1.0, "validation/num_bytes": each, "train/loss": 2.0} for each in read]
    return [Point(0.0, step, step, metrics) for step, metrics in enumerate(scored)]


def test_scores_of_other_bytes_than_the_newest_go_and_all_else_stays():
    kept = comparable(points(10, 20, 20))
    assert [sorted(point.metrics) for point in kept[:2]] == [
        ["train/loss"],
        ["train/loss", "validation/bits_per_byte", "validation/num_bytes"],
    ]
    assert left_out_words(points(10, 20, 20)) == (
        "Left out, as they do not compare: scores of other held-out text, 1 of 10 bytes."
    )


def test_a_score_is_of_the_data_of_its_attempt(tmp_path):
    write_data(tmp_path, "one", None, "two")
    points = [Point(at + 0.5, 0, 0, {}) for at in range(-1, 3)]
    assert [data_behind(tmp_path, point) for point in points] == [None, "one", None, "two"]
    now = {"fingerprint": "two"}
    assert [is_of_earlier_data(tmp_path, point, now) for point in points] == [False, True, False, False]
    assert not is_of_earlier_data(tmp_path, points[1], {}), "nobody noted the newer data"


LAST = CheckpointFacts(
    path=Path("step_00000071"), step=71, tokens=710, identity={}, metrics={"validation/bits_per_byte": 1.949}
)


def scored(step, score, *, num_bytes=4999):
    metrics = {"validation/bits_per_byte": score, "validation/num_bytes": num_bytes}
    return Point(time=0.0, step=step, tokens=10 * step, metrics=metrics)


OVERFIT = [scored(0, 8.0), scored(18, 2.1), scored(36, 1.784), scored(54, 1.8), scored(71, 1.949)]


def test_a_validation_better_than_at_all_checkpoints_is_told_with_the_interval_that_keeps_it():
    told = "1.784 at step 36, not kept: callbacks.checkpoint.every_steps=18 keeps more"
    assert str(unkept_best(OVERFIT, [LAST], {})) == told
    not_asked = {"callbacks": {"checkpoint": {"keep_best": False}}}
    assert "every_steps=18 callbacks.checkpoint.keep_best=true keeps" in str(unkept_best(OVERFIT, [LAST], not_asked))
