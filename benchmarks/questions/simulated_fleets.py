"""Hold `lmtrain simulate` against published rows, each with its error, under one set of efficiencies for all of them.

    python benchmarks/questions/simulated_fleets.py                       # the table, as Markdown
    python benchmarks/questions/simulated_fleets.py --out benchmarks/results/simulated_fleets_zen4_2cores_202611.md

Rows by the real code run one rank's step of lmtrain on fake tensors, in the nearest setting that lmtrain has; rows with
pipeline stages are arithmetic: a token's FLOPs at the share of the peak of the simulated 8B on 8 H100 in the same
format, times the pipeline's share without bubbles (arXiv 2104.04473 section 2.2).
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.machine.hardware import DEVICES, Device, MatmulDtype
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.simulated_step import SimulatedFleet
from lmtrain.accounting.training_plan.step_time import Efficiency, Rates
from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.planning.simulated import Simulation, simulation
from lmtrain.composition.run_config import read_config

H100: Final = DEVICES["NVIDIA H100 80GB HBM3"]
NVL: Final = DEVICES["NVIDIA H100 NVL"]
# "Between SXM and NVL", by its source: an SXM with 500 W and 2.4 TB/s. The lower of both peaks is taken.
CAPPED: Final = replace(
    H100,
    half=NVL.half,
    fp8=NVL.fp8,
    memory_bytes_per_second=2.4e12,
    memory_bytes=96 * 10**9,
    power_watts=500,
)
GOAL: Final = 0.15
PLAIN: Final = ("optimizer=adamw", "precision=bf16_mixed", "gradient_clip_norm=1.0")
A_NODE: Final = ("cluster=h100_8x",)
LLAMA_8B: Final = ("model=llama_3_1_8b", *PLAIN, *A_NODE, "strategy=fsdp")
HALF_AGAIN: Final = ("recompute=memory_budget", "recompute.fraction=0.5")
TITAN: Final = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
BRIDGE: Final = "Megatron-Bridge 25.11, performance summary"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published row: tokens per second and device, and the words of the nearest run of lmtrain.

    `sequences` are a device's of a step, `micro` of a micro-step; `device` None is the cluster's. `unlike` says what
    differs from the published run.
    """

    name: str
    source: str
    published: float
    words: tuple[str, ...]
    num_ranks: int = 8
    sequences: int = 2
    micro: int = 2
    context_tokens: int = 8192
    device: Device | None = None
    unlike: str = ""


def titan(name: str, published: float, *words: str, num_ranks: int = 8) -> Row:
    """Return a row of torchtitan's 8B tables: H100 of 500 W with slower memory."""
    unlike = "its selective recomputation repeats every second product, ours every second block"
    return Row(
        name=f"8B, {num_ranks} H100, {name}",
        source=TITAN,
        published=published,
        words=(*LLAMA_8B, *HALF_AGAIN, *words),
        num_ranks=num_ranks,
        device=CAPPED,
        unlike=unlike,
    )


COMPILED: Final = "compile=blocks"
BRIDGE_8B: Final = Row(
    name="8B, 8 H100, fp8",
    source=BRIDGE,
    published=14451,
    words=(
        *("model=llama_3_1_8b", *PLAIN, *A_NODE, "precision=fp8", "recompute=none", COMPILED),
        *("strategy=fsdp", "strategy.reshard_after_forward=false"),
    ),
    sequences=16,
    micro=1,
    unlike="its gradients and weights are whole on a device, ours sharded",
)
ROWS: Final = (
    titan("eager", 5762, "compile=none"),
    titan("compiled", 6667, COMPILED),
    titan("compiled, fp8", 8532, COMPILED, "precision=fp8"),
    titan("eager", 5605, "compile=none", num_ranks=128),
    titan("compiled", 6514, COMPILED, num_ranks=128),
    titan("compiled, fp8", 8380, COMPILED, "precision=fp8", num_ranks=128),
    Row(
        name="70B, 256 H100, tensor groups of 8, fp8",
        source=TITAN,
        published=829,
        words=("model=llama_3_1_70b", *PLAIN, *A_NODE, "strategy=fsdp_tensor", "recompute=every_block", "compile=none"),
        num_ranks=256,
        device=CAPPED,
        unlike="eager and in bf16: lmtrain's tensor groups have neither fp8 nor compilation",
    ),
    BRIDGE_8B,
    Row(
        name="7B, 128 A100, eager",
        source="IBM and Meta, Maximizing training throughput using PyTorch FSDP (2024)",
        published=3700,
        words=(
            *("model=llama_2_7b", *PLAIN, *A_NODE, "cluster.device=NVIDIA A100-SXM4-80GB", "recompute=none"),
            *("cluster.network_bytes_per_second=50GB", "strategy=fsdp", "compile=none"),
        ),
        num_ranks=128,
        context_tokens=4096,
        unlike="its network is not published there: 400 Gbit/s a node assumed",
    ),
)


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    """A published row with pipeline stages: `micro_batches` of a pipeline, each stage cut into `chunks`."""

    name: str
    source: str
    published: float
    model: str
    stages: int
    chunks: int
    micro_batches: int
    dtype: MatmulDtype
    context_tokens: int = 8192

    @property
    def bubble(self) -> float:
        """Return the idle share of a step."""
        return (self.stages - 1) / (self.chunks * self.micro_batches + self.stages - 1)


# 25.11: global batches of 128 and 256 sequences for 70B and 405B; Llama 3: arXiv 2407.21783 table 4 (16,384 ranks).
PIPELINES: Final = (
    PipelineRow(
        name="70B, 64 H100, fp8", source=BRIDGE, published=1602, model="llama_3_70b",
        stages=8, chunks=5, micro_batches=64, dtype="fp8",
    ),
    PipelineRow(
        name="405B, 1,024 H100, fp8", source=BRIDGE, published=292, model="llama_3_405b",
        stages=8, chunks=8, micro_batches=64, dtype="fp8",
    ),
    PipelineRow(
        name="405B, 16,384 H100, bf16", source="arXiv 2407.21783 table 4", published=400e12 / 2.6e12,
        model="llama_3_405b", stages=16, chunks=8, micro_batches=16, dtype="bf16",
    ),
)  # fmt: skip


def prepared(row: Row, efficiency: Efficiency | None = None) -> Simulation:
    """Return a row's simulation."""
    nodes = row.num_ranks // 8
    tokens = row.sequences * row.num_ranks * row.context_tokens
    words = [
        *row.words,
        f"cluster.num_nodes={nodes}",
        f"batch.context_tokens={row.context_tokens}",
        f"batch.tokens_per_step={tokens}",
    ]
    if row.micro != row.sequences:
        words.append(f"batch.micro_batch_sequences={row.micro}")
    asked = simulation(read_config(compose_config(words)))
    rates = Rates(cluster=asked.config.cluster, efficiency=efficiency or Efficiency(), device=row.device)
    return replace(asked, rates=rates)


def by_arithmetic(row: PipelineRow, mfu: float) -> float:
    """Return a row's tokens per second and device at this share of the peak without bubbles, by PaLM's count."""
    asked = prepared(replace(BRIDGE_8B, words=(*BRIDGE_8B.words, f"model={row.model}")))
    flops = flops_per_token(asked.model.shape(), row.context_tokens).palm
    peak = H100.peak_flops(row.dtype)
    assert peak is not None
    return peak * mfu * (1 - row.bubble) / flops


def line(name: str, published: float, found: float, *notes: str) -> str:
    """Return a row of the table."""
    error = found / published - 1
    mark = "" if abs(error) <= GOAL else " (beyond the goal)"
    return f"| {name} | {published:,.0f} | {found:,.0f} | {error:+.1%}{mark} | {'; '.join(filter(None, notes))} |"


def page() -> str:
    """Return the whole page as Markdown."""
    efficiency = Efficiency()
    rows: list[str] = []
    for row in ROWS:
        fleet: SimulatedFleet = prepared(row).run()
        exposed = fleet.figures.time.exposed_seconds / fleet.figures.time.seconds
        waits = f"{exposed:.0%} of the step waits for messages"
        rows.append(line(row.name, row.published, fleet.tokens_per_second_per_device, waits, row.unlike, row.source))
    in_bf16 = replace(BRIDGE_8B, words=(*BRIDGE_8B.words, "precision=bf16_mixed"))
    mfu = {"fp8": prepared(BRIDGE_8B).run().mfu, "bf16": prepared(in_bf16).run().mfu}
    for row in PIPELINES:
        found = by_arithmetic(row, mfu[row.dtype])
        rows.append(line(f"{row.name}, pipeline", row.published, found, "by arithmetic", row.source))
    head = ["| run | published tokens/s a device | simulated | error | |", "|---|---|---|---|---|"]
    return "\n".join(
        [
            "# Simulated fleets against published rows",
            "",
            "Written by `python benchmarks/questions/simulated_fleets.py`. One set of efficiencies for every row: "
            f"products at {efficiency.products:.0%} of the peak, memory at {efficiency.memory:.0%}, links at "
            f"{efficiency.links:.0%} of the data sheet, {efficiency.launch_seconds * 1e6:.0f} us a launch; the first "
            "two were chosen over these rows together, none for a row of its own. "
            f"Goal: within {GOAL:.0%}.",
            "",
            *head,
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the page to this file")
    asked = parser.parse_args()
    text = page()
    print(text)
    if asked.out:
        asked.out.write_text(text)
