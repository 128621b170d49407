"""The page of simulated fleets."""

from dataclasses import replace

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.training_plan.simulated_step import MessageCount, SimulatedFleet, StepFigures, StepTime
from lmtrain.report.plans.simulation_page import text_of

FLEET = SimulatedFleet(
    strategy="fsdp",
    batch=BatchPlan(context_tokens=8192, micro_batch_sequences=2, accumulation_micro_steps=1, num_ranks=64),
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


def test_one_fleet_is_shown_at_length() -> None:
    base = replace(FLEET, batch=replace(FLEET.batch, num_ranks=8), figures=replace(FLEET.figures, time=StepTime(
        seconds=1.6, compute_seconds=1.5, message_seconds=0.2)))  # fmt: skip
    page = text_of("llama", [FLEET], {"fsdp": base})
    for words in (
        "2 s: 1.5 s of computing, 0.5 s waiting for messages, of 1 s under way",
        "8,192 tokens/s a device, 41.0% MFU",
        "80.0% of a device's speed on 8 ranks",
        "50.0 GB of 80.0 GB a device",
        "8 ranks, 8 apart",
        "14.0 MB",
    ):
        assert words in " ".join(page.split())


def test_several_make_a_table_and_one_that_does_not_fit_names_the_change() -> None:
    page = " ".join(
        text_of(
            "llama", [FLEET, replace(FLEET, strategy="hsdp", device_bytes=10**10)], {"fsdp": FLEET, "hsdp": FLEET}
        ).split()
    )
    assert "fsdp 64 2.000 s 25.0% 8,192 41.0% 100.0% 50.0 GB" in page
    assert "hsdp on 64 ranks needs 50.0 GB of 10.0 GB a device: an option of recompute" in page
