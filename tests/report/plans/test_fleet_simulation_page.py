"""The page of simulated fleets."""

from dataclasses import replace

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.training_plan.simulated_step import MessageCount, SimulatedFleet, StepFigures, StepTime
from lmtrain.report.plans.simulation_page import page
from lmtrain.report.show import plain_text

FLEET = SimulatedFleet(
    strategy="fsdp",
    batch=BatchPlan(context_tokens=8192, sequences_per_micro_step=2, accumulation_micro_steps=1, num_ranks=64),
    figures=StepFigures(
        time=StepTime(seconds=2.0, compute_seconds=1.5, message_seconds=1.0),
        peaks={"forward": {"weights": 1e9, "activations": 49e9}, "step": {"weights": 1e9, "activations": 0}},
        messages=[
            MessageCount(kind="gather", num_ranks=8, stride=8, num_messages=5, num_bytes=2e6, sent_bytes=1.4e7),
        ],
        flops=1e15,
    ),
    flops_per_token=5e10,
    peak_flops=1e15,
    device_bytes=80 * 10**9,
)


def text_of(*fleets: SimulatedFleet, base: SimulatedFleet) -> str:
    shown = plain_text(page("llama", fleets, {"fsdp": base, "hsdp": base}))
    return " ".join(shown.split())


def test_one_fleet_is_shown_at_length_and_several_as_a_table() -> None:
    time = StepTime(seconds=1.6, compute_seconds=1.5, message_seconds=0.2)
    base = replace(FLEET, batch=replace(FLEET.batch, num_ranks=8), figures=replace(FLEET.figures, time=time))
    one = text_of(FLEET, base=base)
    for figure in ("2 s: 1.5 s of computing", "8,192 tokens/s per device, 41.0% MFU", "80.0% of", "50.0 GB of 80.0 GB"):
        assert figure in one
    table = text_of(FLEET, replace(FLEET, strategy="hsdp", device_bytes=10**10), base=FLEET)
    assert "fsdp 64 2.000 s 25.0% 8,192 41.0% 100.0% 50.0 GB" in table
    assert "hsdp on 64 ranks does not fit: 50.0 GB of 10.0 GB" in table
