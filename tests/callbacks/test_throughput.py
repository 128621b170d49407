import logging
from dataclasses import replace

import pytest
import torch

from lmtrain.callbacks.throughput import Throughput
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.module import CausalLMModule
from lmtrain.training.token_batch import TokenBatch
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


def test_mfu_over_100_percent_is_called_an_error_in_the_numbers(make_run, caplog):
    run = make_run(steps=6, peak_flops=1.0)
    with caplog.at_level(logging.WARNING, logger="lmtrain"):
        train(run)
    assert run.points("speed/mfu_palm") == {}
    assert sum("over 100% is an error in the numbers" in message for message in caplog.messages) == 1
    assert caplog.messages[-1].endswith("set cluster.peak_flops to its dense peak.")


def test_dollars_are_for_all_the_time_of_all_attempts(make_run, let_pass):
    run = make_run(steps=2, usd_per_gpu_hour=3600.0)  # a dollar a second
    train(run, AtStep(1, lambda _: let_pass(30)))
    assert 30 < run.points("cost/usd")[2] < 90
    again = make_run(name="again", steps=2, usd_per_gpu_hour=3600.0)
    again = replace(again, context=replace(again.context, earlier_device_seconds=1000.0))
    train(again)
    assert again.points("cost/usd")[2] > 1000


def test_dollars_and_energy_of_the_whole_run_are_those_so_far_and_the_rest_at_this_pace(make_run, let_pass):
    run = make_run(steps=4, usd_per_gpu_hour=3600.0, device_watts=3.6e6)  # a dollar and a kWh a second

    def compute(_):
        with run.context.events.stopwatch.spending("compute"):
            let_pass(40)

    train(run, AtStep(1, compute))
    for so_far, whole in (("cost/usd", "cost/projected_usd"), ("energy/kwh", "energy/projected_kwh")):
        half, end = run.points(so_far)[2], run.points(so_far)[4]
        assert run.points(whole)[2] > half + 30, "two of four steps are left, and two took 40 s and more"
        assert run.points(whole)[4] == pytest.approx(end), "nothing is left"


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_stopped_run_has_the_dollars_of_its_rest_still_to_come_and_one_that_ended_early_has_none(
    make_run, let_pass, goes_on
):
    run = make_run(steps=8, usd_per_gpu_hour=3600.0)

    def compute(_):
        with run.context.events.stopwatch.spending("compute"):
            let_pass(40)

    def end(trainer):
        trainer.should_stop, run.context.last_step.goes_on_later = True, goes_on

    train(run, AtStep(1, compute), AtStep(4, end))
    left = run.points("cost/projected_usd")[4] - run.points("cost/usd")[4]
    assert left > 30 if goes_on else left == 0
