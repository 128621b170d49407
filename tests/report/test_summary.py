from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.report.runs.facts import RunFacts, UnkeptBest, read_run
from lmtrain.report.runs.held_out import HeldOutScore
from lmtrain.report.summary import print_summary, summarize
from lmtrain.tracking.fork import Fork
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

HELD_OUT = HeldOutScore(
    before=8.03,
    after=1.402,
    num_bytes=655_776,
    whole_bytes=655_777,
    context_tokens=256,
    references={"gzip -9": 1.93, "xz -9e": 1.586},
)
LAST = CheckpointFacts(
    path=Path("runs/cat/checkpoints/step_00000748"),
    step=748,
    tokens=1_531_904,
    identity={},
    metrics={"validation/bits_per_byte": 1.402},
)
FACTS = RunFacts(
    folder=Path("runs/cat"),
    name="cat",
    step=748,
    tokens=1_531_904,
    seconds=118.4,
    tokens_per_second=12_934.0,
    loss_share=1.0,
    mfu_palm=0.381,
    usd=0.01,
    held_out=HELD_OUT,
    sample={"prompt": "def ", "text": "main():\n    return 1\n"},
    last=LAST,
    best=LAST,
    mlflow_run_id="4f2a",
    budget_key="budget.tokens",
    budget=1.5e6,
    lr=0.025,
    overrides=("seed=3",),
)


@pytest.fixture
def summary(monkeypatch):
    """Return the text of the summary of these facts."""

    def of(facts):
        monkeypatch.setattr("lmtrain.report.summary.read_run", lambda folder: facts)
        return summarize(facts.folder)

    return of


def test_a_summary_says_what_it_took(summary):
    speed = "12.9K tokens/s (timed over 1min58s after the first step)"
    assert f"1.5M tokens in 748 steps, {speed}, MFU 38.1% (PaLM), $0.010" in summary(FACTS)
    doubted = summary(replace(FACTS, peak_doubt="the machine is busy: 5 tries"))
    assert "MFU 38.1% (PaLM, peak measured on a busy machine), $0.010" in " ".join(doubted.split())


def test_the_model_stands_beside_the_compressors_from_worst_to_best(summary):
    lines = summary(FACTS).splitlines()
    start = lines.index("Bits per byte of held-out text: all but the first token, 655,776 bytes, windows of 256 tokens")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["before", "training", "8.030"],
        ["gzip", "-9", "1.930"],
        ["xz", "-9e", "1.586"],
        ["after", "training", "1.402"],
    ]


def test_it_names_the_checkpoint_the_mlflow_run_and_the_next_commands(summary):
    text = summary(FACTS)
    assert "runs/cat/checkpoints/step_00000748" in text
    assert "4f2a" in text
    for command in (
        "python train.py seed=3 run.name=cat budget.tokens=3.0M",
        "python train.py -m seed=3 optimizer.lr=0.0125,0.025,0.05",
        "python train.py seed=3 source=files 'source.paths=[my/notes]'",
        "lmtrain ui",
    ):
        assert f"  {command}\n" in text
    assert "optimizer.lr=2,4,8\n" in summary(replace(FACTS, lr=8.0)), "16 would be refused"
    assert "three learning rates" not in summary(replace(FACTS, lr=0.0))


def test_a_run_under_way_is_followed_and_stopped_not_trained_on(summary):
    text = summary(replace(FACTS, ended="RUNNING"))
    for command in ("lmtrain tail runs/cat", "lmtrain stop runs/cat", "lmtrain ledger runs/cat", "lmtrain ui"):
        assert f"  {command}\n" in text
    assert "train.py" not in text


def test_a_run_like_a_fork_begins_where_the_fork_did(summary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = tmp_path / "runs/base/checkpoints/step_00000009"
    start.mkdir(parents=True)
    fork = replace(FACTS, fork=Fork(checkpoint=start, step=9))
    lr, tail = "optimizer.lr=0.0125,0.025,0.05", ("schedule=cooldown", "budget.tokens=1M", "budget.tokens=1.5M")
    for typed, said in (
        ("resume=runs/base/checkpoints/step_00000009", "resume=runs/base/checkpoints/step_00000009"),
        ("resume=runs/base", "resume=runs/base"),
        ("resume=auto", f"resume={start}"),
        ("seed=3", f"seed=3 resume={start}"),
    ):
        text = summary(replace(fork, overrides=(*tail, typed)))
        assert f"  python train.py -m schedule=cooldown budget.tokens=1.5M {said} {lr}\n" in text
        own = "seed=3 " if typed == "seed=3" else ""
        assert f"  python train.py schedule=cooldown {own}run.name=cat budget.tokens=3.0M\n" in text, "by its fork.json"
        assert "my/notes" not in text
    moved = replace(FACTS, fork=Fork(checkpoint=start, step=9, noted=tmp_path / "runs/older"))
    assert f" resume={start} {lr}\n" in summary(replace(moved, overrides=("resume=runs/older",)))
    gone = replace(FACTS, fork=Fork(checkpoint=start, step=9, is_gone=True))
    assert "learning rates" not in summary(gone), "another run's checkpoint"
    start.rmdir()
    assert "learning rates" not in summary(fork), "nothing to begin with"
    own = summary(replace(FACTS, overrides=("resume=runs/cat/checkpoints/step_00000009", "run.name=cat")))
    assert f"  python train.py -m {lr}\n" in own


def test_code_allowed_in_the_command_is_allowed_in_the_next_ones(summary):
    text = summary(replace(FACTS, allowed=("my_package.", "x.")))
    assert "  lmtrain chat runs/cat --allow-target my_package. --allow-target x.\n" in text
    own = summary(replace(FACTS, config_dir="my options"))
    assert "python train.py --config-dir 'my options' seed=3 run.name=cat" in own
    assert "  lmtrain chat runs/cat\n" in own
    assert "python train.py --allow-target my_package. --allow-target x. seed=3 run.name=cat" in text
    assert "python train.py -m --allow-target my_package. --allow-target x. seed=3 optimizer.lr" in text


def test_a_better_validation_without_a_checkpoint_is_told(summary):
    unkept = UnkeptBest(bits_per_byte=1.3, step=36, words="callbacks.checkpoint.every_steps=18")
    text = summary(replace(FACTS, best=LAST, unkept_best=unkept))
    assert "the best too" not in text
    assert "  checkpoint (1.402) " in text
    assert "1.300 at step 36, not kept: callbacks.checkpoint.every_steps=18 keeps more\n" in text
    earlier = replace(LAST, path=Path("runs/cat/checkpoints/step_00000500"), step=500)
    assert "best kept checkpoint (1.402)" in summary(replace(FACTS, best=earlier, unkept_best=unkept))


def test_a_sample_cannot_command_the_terminal(summary):
    text = summary(replace(FACTS, sample={"text": "a\x1b[31m[bold]b\x07"}))
    assert not set(text) & {"\x1b", "\x07"}
    assert "[bold]b" in text


def test_a_run_of_which_little_is_known_has_a_summary(tmp_path, capsys):
    print_summary(tmp_path)
    printed = capsys.readouterr().out
    assert "0 tokens in 0 steps" in printed
    assert "\x1b" not in printed
    assert read_run(tmp_path).lr is None


def test_twice_the_budget_is_twice_of_each_of_several(summary):
    facts = replace(FACTS, budget_key="budget.steps", budget=20, other_budgets={"budget.tokens": 41_000.0})
    assert "budget.steps=40 budget.tokens=82.0K" in " ".join(summary(facts).split())
    exact = replace(FACTS, budget=1_531_904)
    assert "budget.tokens=3063808\n" in summary(exact), "3.06M would end it some steps early, 3.07M late"


def test_a_run_ended_by_early_stopping_goes_on_without_it(summary):
    words = ("callbacks=[default,early_stopping]", "callbacks.early_stopping.stop_at=2.6", "run.name=cat")
    facts = replace(FACTS, overrides=words, early_stop="early_stopping")
    start = "python train.py 'callbacks=[default,early_stopping]' run.name=cat callbacks.early_stopping=null"
    assert f"# train on to its budget, without early stopping\n  {start}\n" in summary(facts)
    also = replace(facts, early_stop="early_stopping_at_the_end", budget=1000)
    assert f"to twice the budget, without early stopping\n  {start} budget.tokens=2.0K\n" in summary(also)


def test_a_run_that_failed_says_why_and_goes_on_to_its_own_budget(summary):
    text = summary(replace(FACTS, ended="FAILED", reason="Step 3 has loss nan.", last=None))
    assert "\nfailed: Step 3 has loss nan.\n" in text
    assert "# go on, from the start to its budget\n  python train.py seed=3 run.name=cat\n" in text
    assert "# go on, from its checkpoint to its budget" in summary(replace(FACTS, ended="KILLED"))
    assert "twice" not in text
