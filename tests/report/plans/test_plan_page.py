from dataclasses import replace

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.model.memory import device_memory
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.communication import CommunicationVolume
from lmtrain.accounting.training_plan.plan import Advice, Plan, Speed
from lmtrain.report.plans.plan_page import text_of
from tests.accounting.training_plan.test_fit import MILLION, SETTING

BATCH = plan_batches(Batch(context_tokens=10, tokens_per_step=240))
FLOPS = flops_per_token(SETTING.facts.shape, 10)
PLAN = Plan(
    shape=SETTING.facts.shape,
    batch=BATCH,
    horizon=horizon(Budget(steps=10), tokens_per_step=240, num_active_parameters=MILLION, flops_per_token=FLOPS.palm),
    flops_per_token=FLOPS,
    components={"feed_forward": 900_000, "embedding": 100_000},
)


def test_what_is_not_known_says_so_and_is_no_zero():
    text = text_of(PLAN, Advice((), is_possible=True), title="small")
    assert "not known: the peak of the device is unknown" in text
    assert "GB" not in text
    sent = CommunicationVolume(gathered_bytes=2 * 10**9, reduced_bytes=10**9, bytes_per_second=None)
    assert "sent a step       3.0 GB from each device, at a rate that is not known" in text_of(
        replace(PLAN, communication=sent), Advice((), is_possible=True), title="small"
    )


def test_the_end_of_a_budget_of_hours_is_not_told_where_no_speed_is_known():
    end = horizon(Budget(hours=2), tokens_per_step=240, num_active_parameters=MILLION, flops_per_token=FLOPS.palm)
    unknown = replace(PLAN, horizon=end, epoch_tokens=1_000)
    text = text_of(unknown, Advice((), is_possible=True), title="small")
    assert "tokens            not known: budget.hours ends it, and no speed is known" in text
    assert not any(
        word in text for word in ("the run", "tokens/parameter", "epochs", "compute-optimal", "100,000 steps")
    )
    both = horizon(
        Budget(hours=2, steps=40), tokens_per_step=240, num_active_parameters=MILLION, flops_per_token=FLOPS.palm
    )
    text = text_of(replace(unknown, horizon=both), Advice((), is_possible=True), title="small")
    assert "in 40 steps, as budget.steps says, unless budget.hours ends it before" in " ".join(text.split())
    measured = Speed(step_seconds=1.0, mfu_palm=0.4, source="measured")
    known = replace(unknown, speed=measured, horizon=replace(end, is_stand_in=False))
    text = " ".join(text_of(known, Advice((), is_possible=True), title="small").split())
    assert "compute-optimal" in text
    assert "; validation, start-up and checkpoints are within it, and leave fewer steps" in text


def test_a_stage_s_memory_says_what_it_counts():
    memory = device_memory(SETTING.facts.parameters, precision=SETTING.precision, optimizer=SETTING.optimizer)
    plan = replace(PLAN, memory=memory)
    assert "its layers with" not in text_of(plan, Advice((), is_possible=True), title="small")
    staged = replace(plan, batch=replace(BATCH, num_ranks=8, num_stages=8))
    assert "stage             the fuller end: its layers with the embedding or the head" in text_of(
        staged, Advice((), is_possible=True), title="small"
    )


def test_kinds_that_are_not_there_at_the_peak_say_so():
    settings = {"precision": SETTING.precision, "optimizer": SETTING.optimizer, "keeps_gradients": False}
    for activations, missing in ((9_000_000, "gradients"), (1, "activations")):
        memory = device_memory(SETTING.facts.parameters, activations=activations, **settings)
        text = text_of(replace(PLAN, memory=memory), Advice((), is_possible=True), title="small")
        assert f"{missing:<18}0 at the peak" in text


def test_parts_have_their_share():
    text = text_of(PLAN, Advice((), is_possible=True), title="small")
    assert "900,000 (90.0%)" in text
    assert "1,000,000 (1.0M)" in text
    assert "24 sequences x 10 tokens x 1 micro-step x 1 device" in text


def test_bytes_of_rare_meetings_are_told_by_the_step_and_by_the_meeting():
    rare = Collective(group="copies", num_ranks=4, every_steps=50, reduced_bytes=2e6)
    sent = CommunicationVolume(gathered_bytes=0, reduced_bytes=2_000_000, bytes_per_second=None, groups=(rare,))
    speed = Speed(step_seconds=1.0, mfu_palm=0.4, source="measured")
    text = text_of(replace(PLAN, communication=sent, speed=speed), Advice((), is_possible=True), title="small")
    assert "0.002 GB from each device, 0.100 GB every 50 steps, at a rate" in " ".join(text.split())


def test_advice_comes_last():
    text = text_of(PLAN, Advice(("fits with x",), is_possible=False), title="small")
    assert text.rstrip().endswith("fits with x")


def test_the_time_of_a_short_run_is_told_in_seconds_and_not_as_no_hours():
    speed = Speed(step_seconds=0.5, mfu_palm=0.4, source="assumed")
    short, long = (
        text_of(
            replace(PLAN, speed=speed, horizon=PLAN.horizon.ending_at(steps)), Advice((), is_possible=True), title="x"
        )
        for steps in (10, 72_000)
    )
    assert " 5s; validation, start-up and checkpoints come on top" in short
    assert " 10 hours (0.417 days); validation" in long


def test_a_short_step_is_told_in_milliseconds():
    told = [
        text_of(replace(PLAN, speed=Speed(step_seconds=seconds, mfu_palm=0.4, source="assumed")),
                Advice((), is_possible=True), title="x")
        for seconds in (0.000578, 0.5)
    ]  # fmt: skip
    assert " 0.578 ms at 40% MFU (assumed)" in told[0]
    assert " 0.5 s at 40% MFU (assumed)" in told[1]


def test_passes_over_a_small_text_are_a_number_that_people_read():
    few, many = (text_of(replace(PLAN, epoch_tokens=n), Advice((), is_possible=True), title="x") for n in (1000, 2))
    assert "2.4 over 1.0K tokens\n" in few
    assert "1,200 over 2 tokens; those after 4 teach ever less" in many


def test_a_context_below_the_model_s_is_pointed_at():
    context = PLAN.batch.context_tokens
    said = f"the model takes up to {context + 1}: batch.context_tokens={context + 1}"
    longer = replace(PLAN, most_context_tokens=context + 1)
    assert said in text_of(longer, Advice((), is_possible=True), title="small")
    for most in (None, context):
        assert "takes up to" not in text_of(
            replace(PLAN, most_context_tokens=most), Advice((), is_possible=True), title="small"
        )


def test_only_training_from_scratch_is_held_against_the_compute_optimum():
    for is_from_scratch in (True, False):
        text = text_of(replace(PLAN, is_from_scratch=is_from_scratch), Advice((), is_possible=True), title="small")
        assert ("tokens/parameter" in text) is ("The same FLOPs" in text) is ("optimal" in text) is is_from_scratch
