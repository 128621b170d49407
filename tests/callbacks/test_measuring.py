"""Speed, cost and the account of time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmtrain.accounting.model.model_shape import AttentionShape
from lmtrain.callbacks.communication import EXPERTS, Activity, exposed_shares
from lmtrain.callbacks.ledger import Ledger
from lmtrain.callbacks.throughput import Throughput
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.module import CausalLMModule
from lmtrain.training.time_profiler import TimeProfiler
from lmtrain.training.token_batch import TokenBatch
from tests.callbacks.test_two_ranks import train as train_two_ranks
from tests.callbacks.tiny_run import CONTEXT_TOKENS, AtStep, TinyModel

TOKENS_PER_STEP = 32


def train(run, *callbacks, **settings):
    return run.fit(
        Throughput(every_steps=2, context=run.context), *callbacks, TokenBudget(context=run.context), **settings
    )


def test_pauses_do_not_count_as_training_time(make_run, let_pass):
    run = make_run(steps=4)

    def pause(_):
        with run.context.events.pause("validation"):
            let_pass(50)

    train(run, AtStep(3, pause))
    assert run.points("speed/tokens_per_second")[4] > 2 * TOKENS_PER_STEP / 50  # what it would be with the pause


def test_the_first_step_which_compiles_does_not_count(make_run, let_pass):
    class CompilesFirst(TinyModel):
        def features(self, tokens, documents=None):
            if not hasattr(self, "compiled"):
                self.compiled = True
                let_pass(50)
            return super().features(tokens, documents)

    run = make_run(steps=3)
    train(run, module=run.module(CompilesFirst()))
    assert run.points("speed/tokens_per_second")[2] > 2 * TOKENS_PER_STEP / 50
    assert run.context.events.paused_seconds > 50


def test_tokens_without_loss_do_not_count(make_run, let_pass):
    class HalfPadding(CausalLMModule):
        def training_step(self, batch, batch_idx):
            mask = torch.zeros(len(batch), CONTEXT_TOKENS, dtype=torch.bool)
            mask[:, ::2] = True
            return super().training_step(TokenBatch(batch, loss_mask=mask), batch_idx)

    run = make_run(steps=5)
    module = run.module(TinyModel())
    module.__class__ = HalfPadding
    train(run, AtStep(3, lambda _: let_pass(20)), module=module)
    assert module.step_metrics.trained_tokens == 5 * TOKENS_PER_STEP // 2
    assert 0 < run.points("speed/tokens_per_second")[4] < 2 * TOKENS_PER_STEP / 2 / 20
    assert set(run.points("speed/loss_share").values()) == {0.5}


def test_mfu_is_flops_over_peak_by_both_conventions(make_run):
    run = make_run(steps=2, peak_flops=1e15)
    train(run)
    tokens_per_second = run.points("speed/tokens_per_second")[2]
    for convention in ("palm", "causal"):
        flops = getattr(run.context.plan.flops_per_token, convention)
        assert run.points(f"speed/mfu_{convention}")[2] == pytest.approx(flops * tokens_per_second / 1e15)


def test_dollars_are_for_all_the_time_of_all_attempts(make_run, let_pass):
    run = make_run(steps=2, usd_per_gpu_hour=3600.0)  # a dollar a second
    train(run, AtStep(1, lambda _: let_pass(30)))
    assert 30 < run.points("cost/usd")[2] < 90
    again = make_run(name="again", steps=2, usd_per_gpu_hour=3600.0)
    again = replace(again, context=replace(again.context, earlier_device_seconds=1000.0))
    train(again)
    assert again.points("cost/usd")[2] > 1000


def train_of_ledger(run, *callbacks, **settings):
    context = run.context
    profiler = TimeProfiler(context.events.stopwatch)
    watched = (*callbacks, Ledger(every_steps=2, context=context), TokenBudget(context=context))
    run.fit(*watched, profiler=profiler, **settings)
    context.events.close()
    rows = (context.folder / "events/rank0.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if row["name"] == "ledger"]


def seconds_of(row):
    return {kind: value for kind, value in row.items() if kind not in ("name", "start", "step", "tokens", "flops")}


def test_every_reading_adds_up_to_the_clock(make_run):
    run = make_run(steps=5)
    rows = train_of_ledger(run)
    assert [row["step"] for row in rows] == [0, 2, 4, 5, 5]
    for row in rows:
        clock = row["start"] - run.context.events.stopwatch.started_at
        assert sum(seconds_of(row).values()) == pytest.approx(clock, abs=0.01)


def test_flops_are_of_the_documents_that_were_trained_on(make_run):
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 2, 2, 2, 2, 3, 3]], dtype=torch.int32)

    class Attends(TinyModel):
        def shape(self):
            window = AttentionShape(num_heads=2, head_width=4, window_tokens=3)
            state = AttentionShape(num_heads=1, head_width=4, state_flops=7)
            return replace(super().shape(), attention=(window, AttentionShape(num_heads=1, head_width=4), state))

    class Masked(CausalLMModule):
        def training_step(self, batch, batch_idx):
            return super().training_step(TokenBatch(batch, documents=documents), batch_idx)

    shape = Attends().shape()
    run = make_run(steps=3, accumulation_micro_steps=2, shape=shape)  # micro-batches of two rows
    module = run.module(Attends())
    module.__class__ = Masked
    rows = train_of_ledger(run, module=module)
    pairs = [(row, i, j) for row in documents.tolist() for i in range(8) for j in range(i + 1) if row[i] == row[j]]
    seen = {3: sum(i - j < 3 for _, i, j in pairs), None: len(pairs)}
    a_micro_step = 6 * 2 * 8 * seen[3] + 6 * 1 * 8 * seen[None] + 16 * (6 * shape.num_matmul_parameters + 3 * 7)
    assert {row["step"]: row["flops"] for row in rows} == {step: 2 * step * a_micro_step for step in (0, 2, 3)}


def test_time_is_booked_on_what_took_it(make_run, let_pass):
    run = make_run(steps=4)

    def save(_):
        with run.context.events.pause("checkpoint"):
            let_pass(30)

    class Slow(TinyModel):
        def features(self, tokens, documents=None):
            let_pass(10)
            return super().features(tokens, documents)

    spent = seconds_of(train_of_ledger(run, AtStep(2, save), module=run.module(Slow()))[-1])
    assert 25 <= spent["checkpoint"] < 50, "less what other work had of it"
    assert 40 <= spent["compute"] < 90
    assert spent["data_wait"] < 10


def train_row(run):
    rows = (run.context.folder / "events/rank0.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if row["name"] == "ledger"][-1]


def test_a_run_that_fails_leaves_its_account(make_run):
    run = make_run(steps=4)

    def crash(_):
        raise KeyError("crash")

    with pytest.raises(KeyError):
        train_of_ledger(run, AtStep(3, crash))
    run.context.events.close()
    assert train_row(run)["step"] == 3


def activity(name: str, start: float, end: float, *, is_annotation: bool = False) -> Activity:
    return Activity(name=name, span=(start, end), is_annotation=is_annotation)


def test_waits_for_experts_and_for_stages_are_apart_and_only_those_without_computing_count():
    trace = [
        activity("aten::mm", 0, 4),
        activity("gloo:all_reduce", 3, 5),
        activity(EXPERTS, 5, 7, is_annotation=True),
        activity("gloo:all_to_all", 5.5, 7),
        activity("gloo:recv", 7.5, 9),
        activity("aten::mm", 9, 10),
    ]
    staged = exposed_shares(trace, has_stages=True)
    assert staged == pytest.approx({"expert_wait": 0.15, "pipeline_bubble": 0.15, "communication": 0.1})
    assert exposed_shares(trace) == pytest.approx({"expert_wait": 0.15, "communication": 0.25})


@pytest.mark.distributed
@pytest.mark.slow
def test_waiting_for_a_rank_that_is_late_is_communication(tmp_path: Path, dataset_folder: Path):
    """The second rank computes 0.2 s longer in every step: the first one waits for it."""
    train_two_ranks(tmp_path, dataset_folder, "late")
    for rank, is_waiting in (("0", True), ("1", False)):
        rows = [json.loads(line) for line in (tmp_path / f"events/rank{rank}.jsonl").read_text().splitlines()]
        assert [row["name"] for row in rows].count("trace") == 4, "the third step and the fifth, begun and ended"
        last = [row for row in rows if row["name"] == "ledger"][-1]
        share = last["communication"] / (last["communication"] + last["compute"])
        assert (share > 0.6) == is_waiting, last
        assert (share < 0.4) != is_waiting, last
