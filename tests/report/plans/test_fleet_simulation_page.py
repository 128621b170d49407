"""The page of simulated fleets."""

from dataclasses import replace

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.model.memory import FORWARD, STEP, DeviceMemory
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.simulated_fleet import SimulatedFleet
from lmtrain.accounting.training_plan.speed import Speed
from lmtrain.accounting.training_plan.step_time import StepTime
from lmtrain.report.plans.simulation_page import page
from lmtrain.report.show import plain_text

FULL = DeviceMemory(weights=10**9, weights_copy=0, gradients=0, optimizer=0, activations=49 * 10**9, moment=FORWARD)
FLEET = SimulatedFleet(
    strategy="fsdp",
    batch=BatchPlan(context_tokens=8192, sequences_per_micro_step=2, accumulation_micro_steps=1, num_ranks=64),
    speed=Speed(step_seconds=2.0, mfu_palm=0.41, source="modelled"),
    time=StepTime(seconds=2.0, compute_seconds=1.5, message_seconds=1.0),
    memory=FULL,
    moments=[FULL, replace(FULL, activations=0, moment=STEP), replace(FULL, activations=0, moment="backward")],
    groups=[Collective(group="shards", num_ranks=8, stride=8, gathered_bytes=1.4e7, num_gathers=5)],
    device_bytes=80 * 10**9,
)


def text_of(**fleets: SimulatedFleet) -> str:
    shown = plain_text(page("llama", fleets))
    return " ".join(shown.split())


def test_one_fleet_is_shown_at_length_and_several_as_a_table() -> None:
    one = text_of(fsdp=FLEET)
    figures = ("2 s: 1.5 s of computing", "8,192 tokens/s per device, 41.0% MFU", "50.0 GB of 80.0 GB")
    for figure in (*figures, "gathers 8 ranks, 8 apart 5 14.0MB"):
        assert figure in one
    table = text_of(fsdp=FLEET, hsdp=replace(FLEET, strategy="hsdp", device_bytes=10**10))
    assert "fsdp 64 2.000 s 25.0% 8,192 41.0% 50.0 GB" in table
    assert "hsdp on 64 ranks does not fit: 50.0 GB of 10.0 GB" in table
