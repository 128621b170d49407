"""The learning-speed benchmark: seconds become steps, one function scores every loop, the page says what was run."""

import argparse
import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks.harness.learning_speed.evaluation import evaluate
from benchmarks.harness.learning_speed.referees import Followed, points
from benchmarks.harness.learning_speed.report import keep
from benchmarks.harness.learning_speed.speed import clock_of, milliseconds_per_step, steps_in
from benchmarks.harness.learning_speed.task import LearningTask, load_task
from benchmarks.peers.learning_speed import nanochat, nanogpt
from benchmarks.questions import learning_speed
from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.data.synthetic import synthetic
from lmtrain.evaluation import bits_per_byte
from lmtrain.training.batches.training_batches import RankRows, TrainingBatches
from lmtrain.training.datamodule import TokenDataModule

pytestmark = pytest.mark.benchmarks


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    root = tmp_path_factory.mktemp("learning")
    folder = synthetic(root=str(root / "data"), vocab_size=512)
    shape = {"num_layers": 1, "num_heads": 1, "vocab_size": 512, "context_tokens": 16, "num_sequences": 3}
    return LearningTask(
        **shape, device="cpu", precision="fp32", is_compiled=False, threads=1, warm_up_steps=1, turn_steps=1,
        max_steps=20, data_root=str(root / "data"), tokens_file="", peers="", scratch=str(root), folder=str(folder),
        seed=5,
    )  # fmt: skip


def test_a_busy_machine_changes_no_number_of_steps():
    quiet = {"ours": {"wall_seconds": [0.1, 0.1, 0.1]}, "other": {"wall_seconds": [0.15, 0.15, 0.15]}}
    busy = {"ours": {"wall_seconds": [0.1, 0.4, 0.2]}, "other": {"wall_seconds": [0.15, 0.6, 0.3]}}
    for found in (quiet, busy):
        told = milliseconds_per_step(found, clock="wall_seconds", base="ours", known={})
        assert told == pytest.approx({"ours": 100, "other": 150})
    assert steps_in(120, told["other"]) == 800


def test_what_an_idle_machine_told_is_taken_as_it_is():
    found = {name: {"cpu_seconds": [seconds]} for name, seconds in (("ours", 0.2), ("other", 0.3), ("third", 0.4))}
    told = milliseconds_per_step(found, clock=clock_of(1), base="ours", known={"ours": 100.0, "third": 170.0})
    assert told == pytest.approx({"ours": 100, "other": 150, "third": 170})


def test_equal_logits_cost_the_logarithm_of_the_vocabulary(task):
    batches = task.held_out()
    num_tokens = sum(int((targets >= 0).sum()) for _, targets in batches)
    assert num_tokens == task.dataset.split("validation").num_tokens - 1
    everything, part = evaluate(lambda inputs: torch.zeros(*inputs.shape, 512), batches, task.token_bytes, every=4)
    assert everything.bits_per_byte == pytest.approx(num_tokens * math.log2(512) / everything.num_bytes, rel=1e-6)
    assert 0 < part.num_bytes < everything.num_bytes


def test_loops_are_scored_as_our_own_evaluation_scores(task):
    class Bigrams(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(512, 512)

        def forward(self, tokens, targets=None, loss=None, documents=None):
            return self.table(tokens) if loss is None else loss(self.table(tokens), targets)

    def loss(logits, targets):
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return nats, nats, (targets >= 0).sum()

    model, batches = Bigrams(), task.held_out()
    ours = bits_per_byte.evaluate(model, batches, token_bytes=task.token_bytes, loss=loss)
    everything, _ = evaluate(model, batches, task.token_bytes)
    assert everything.bits_per_byte == pytest.approx(ours.bits_per_byte, rel=1e-6)
    assert everything.num_bytes == ours.num_bytes


def test_peers_read_the_rows_that_the_trainer_reads(task):
    batch = plan_batches(Batch(context_tokens=16, tokens_per_step=48))
    rows, order = TokenDataModule(folder=task.folder, batch=batch, seed=5).rows_in_order()
    trainer = TrainingBatches(rows, RankRows(order, batch=batch, rank=0, start_step=0))
    for mine, theirs in itertools.islice(zip(task.rows(), trainer, strict=False), 40):
        assert torch.equal(mine, theirs.long())


def test_a_task_survives_its_file(task, tmp_path):
    told = replace(task, words=("model.key_smear=false",), lr_factor=2.0)
    told.save(tmp_path / "task.json")
    assert load_task(tmp_path / "task.json") == told


def test_schedules_lie_over_the_whole_run():
    assert [nanogpt.share(step, 400) for step in (0, 40, 400)] == pytest.approx([1 / 41, 1.0, 0.1])
    groups = [{"initial_lr": 1.0, "kind": "adamw"}, {"initial_lr": 2.0, "kind": "muon"}]
    optimizer = argparse.Namespace(param_groups=groups)
    found = {}
    for step in (0, 300, 1000):
        nanochat.schedule(optimizer, step, 1000)
        found[step] = (groups[0]["lr"], groups[1]["lr"], groups[1]["momentum"], groups[1]["weight_decay"])
    assert found[0] == pytest.approx((1 / 40, 2 / 40, 0.85, 0.3))
    assert found[300][:3] == pytest.approx((1.0, 2.0, 0.94))
    assert found[1000] == pytest.approx((0.05, 0.1, 0.90, 0.0))


def test_a_followed_run_is_evaluated_at_its_points_and_saved_when_it_ends(task, tmp_path):
    referee = Followed(replace(task, num_points=4))
    referee.predict_with(lambda inputs: torch.zeros(*inputs.shape, 512))
    for _ in range(20):
        referee.step()
    referee.save(tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())
    assert [step for step, _ in found["curve"]] == [5, 10, 15, 20] == points(20, 4)
    assert found["num_bytes"] > 0


def test_finished_runs_are_not_trained_again_and_the_best_rate_is_raced(task, tmp_path, monkeypatch):
    arguments = argparse.Namespace(
        folder=tmp_path, seeds=[1, 2], loops=["ours", "litgpt"], factors=[0.5, 1.0], ablate=[], only_report=True
    )
    monkeypatch.setattr(learning_speed.subprocess, "run", lambda *words, **named: pytest.fail("trained"))
    for factor, value in ((0.5, 1.5), (1.0, 1.7)):
        write(tmp_path, "litgpt", value, num_steps=25, lr_factor=factor)
    write(tmp_path, "litgpt", 1.4, num_steps=100, lr_factor=0.5)
    write(tmp_path, "ours", 1.1, num_steps=200)
    found = list(learning_speed.all_runs(arguments, task, {"ours": 200, "litgpt": 100}))
    raced = {(run["loop"], run["lr_factor"]) for run in found if run["part"] == "race"}
    assert raced == {("ours", 1.0), ("litgpt", 0.5)}


def test_a_missing_checkout_ends_it_before_anything_is_measured(task):
    learning_speed.require_checkouts(["ours"], task)
    with pytest.raises(SystemExit, match="no checkout nanoGPT in --peers"):
        learning_speed.require_checkouts(["ours", "nanogpt"], task)


def write(folder, loop, value, *, num_steps, lr_factor=1.0, seed=1):
    name = learning_speed.RunName(loop, num_steps, seed, lr_factor)
    name.file(folder).write_text(json.dumps(run_of(loop, value, num_steps=num_steps, lr_factor=lr_factor, seed=seed)))


def run_of(loop, value, **more):
    curve = [[50, 2.0], [100, value + 0.1]]
    facts = {
        "loop": loop,
        "bits_per_byte": value,
        "num_bytes": 99,
        "curve": curve,
        "num_parameters": 4,
        "given": "x",
        "first_step_seconds": 8,
    }
    return facts | {"lr_factor": 1.0, "seed": 1} | more


def test_the_page_has_means_spreads_differences_sweeps_and_ablations(tmp_path):
    race = [("ours", 1, 1.10), ("ours", 2, 1.14), ("nanochat", 1, 1.40), ("nanochat", 2, 1.42)]
    runs = [run_of(loop, value, seed=seed, num_steps=100, part="race") for loop, seed, value in race]
    runs += [run_of("nanochat", 1.9 / f, lr_factor=f, num_steps=25, part="sweep") for f in (0.5, 1.0)]
    runs += [run_of("ours", 1.3, num_steps=33, part="ablation", words=[], callback_bits_per_byte=1.3001)]
    runs += [run_of("ours", 1.4, num_steps=33, part="ablation", words=["model.key_smear=false"])]
    loops = {name: {"cpu_seconds": [s, s], "first_step_seconds": 9} for name, s in (("ours", 0.2), ("nanochat", 0.3))}
    facts = {"command": "c", "seconds": 120.0, "threads": 1, "loops": loops, "known_ms_per_step": {"ours": 116.0}}
    keep(runs, facts | {"ms_per_step": {"ours": 116.0, "nanochat": 174.0}}, tmp_path / "result")
    page = (tmp_path / "result.md").read_text()
    assert "| lmtrain, `python train.py` | **1.1200** | 0.0283 | 1, 2 | 1.1000 to 1.1400 | 116 | 1 |" in page
    assert "nanochat +0.290 (+0.280 to +0.300)" in page
    assert "| nanochat | 25 | 3.8000 | 1.9000 |" in page
    assert "| `model.key_smear=false` | 1.4000 | +0.1000 |" in page
    assert "differ by 0.00010 at most" in page
    assert "<svg" in (tmp_path / "result.svg").read_text()
    assert len(json.loads((tmp_path / "result.json").read_text())["runs"]) == len(runs)
