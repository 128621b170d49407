"""Hold `lmtrain simulate` against published rows, each with its error, under one set of efficiencies for all of them.

    python benchmarks/questions/simulated_fleets.py                       # the table, as Markdown
    python benchmarks/questions/simulated_fleets.py --out benchmarks/results/simulated_fleets_zen4_2cores_202611.md

Rows by the real code run one rank's step of lmtrain on fake tensors, in the nearest setting that lmtrain has; rows with
pipeline stages are arithmetic: a token's FLOPs at the share of the peak of the simulated
8B on 8 H100 in the same format, the waits of a simulated tensor group where the source does not say that its messages
are hidden, and the pipeline's bubbles (arXiv 2104.04473 section 2.2).
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.machine.hardware import DEVICES, Device
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.simulated_step import Efficiency, Rates, SimulatedFleet
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning.simulated import Simulation, simulation
from lmtrain.run.run_config import read_config

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
FLASH_2_ON_HOPPER: Final = 0.35  # of the peak: arXiv 2407.08608; torch's own kernel when torchtitan's rows were made
PLAIN: Final = ("optimizer=adamw", "precision=bf16_mixed", "gradient_clip_norm=1.0")
A_NODE: Final = ("cluster=h100_8x",)
LLAMA_8B: Final = ("model=llama_3_1_8b", *PLAIN, *A_NODE, "strategy=fsdp")
HALF_AGAIN: Final = ("recompute=memory_budget", "recompute.fraction=0.5")
TITAN: Final = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
BRIDGE: Final = "Megatron-Bridge 25.11, performance summary"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published row: tokens per second and device, and the words of the nearest run of lmtrain.

    `sequences` are a device's of a step, `micro` of a micro-step; `device` None is the cluster's; `attention` is its
    kernel's share of the peak. `unlike` says what differs from the published run.
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
    attention: float = Efficiency().attention
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
        attention=FLASH_2_ON_HOPPER,
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
TITAN_70B: Final = Row(
    name="70B, 256 H100, tensor groups of 8, compiled, fp8",
    source=TITAN,
    published=829,
    words=(
        *("model=llama_3_1_70b", *PLAIN, *A_NODE, "strategy=fsdp_tensor", "recompute=every_block", COMPILED),
        "precision=fp8",
    ),
    num_ranks=256,
    device=CAPPED,
    attention=FLASH_2_ON_HOPPER,
    unlike="its activations are gathered in fp8, ours in bf16",
)
ROWS: Final = (
    titan("eager", 5762, "compile=none"),
    titan("compiled", 6667, COMPILED),
    titan("compiled, fp8", 8532, COMPILED, "precision=fp8"),
    titan("eager", 5605, "compile=none", num_ranks=128),
    titan("compiled", 6514, COMPILED, num_ranks=128),
    titan("compiled, fp8", 8380, COMPILED, "precision=fp8", num_ranks=128),
    TITAN_70B,
    replace(
        TITAN_70B,
        name=f"{TITAN_70B.name}, messages behind products",
        published=876,
        unlike="its messages are cut and sent behind products, ours waited for",
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
class ArithmeticRow:
    """A published row by arithmetic: its FLOPs at the share of the peak of `like`, waits and bubbles added.

    `micro_batches` go through a pipeline of `stages`, each cut into `chunks`. `tensor_ranks` wait for their messages;
    1 where the source hides them behind products (Megatron-Bridge), or has no tensor groups.
    """

    name: str
    source: str
    published: float
    model: str
    like: Row
    stages: int = 1
    chunks: int = 1
    micro_batches: int = 1
    tensor_ranks: int = 1
    context_tokens: int = 8192
    recompute: str = "none"

    @property
    def bubble(self) -> float:
        """Return the idle share of a step."""
        return (self.stages - 1) / (self.chunks * self.micro_batches + self.stages - 1)


IN_BF16: Final = replace(BRIDGE_8B, words=(*BRIDGE_8B.words, "precision=bf16_mixed"))
# 25.11: global batches of 128 and 256 sequences for 70B and 405B; Llama 3: arXiv 2407.21783 table 4 (16,384 ranks).
BY_ARITHMETIC: Final = (
    ArithmeticRow(
        name="70B, 64 H100, fp8, pipeline", source=BRIDGE, published=1602, model="llama_3_70b", like=BRIDGE_8B,
        stages=8, chunks=5, micro_batches=64,
    ),
    ArithmeticRow(
        name="405B, 1,024 H100, fp8, pipeline", source=BRIDGE, published=292, model="llama_3_405b", like=BRIDGE_8B,
        stages=8, chunks=8, micro_batches=64,
    ),
    ArithmeticRow(
        name="405B, 16,384 H100, bf16, pipeline", source="arXiv 2407.21783 table 4", published=400e12 / 2.6e12,
        model="llama_3_405b", like=IN_BF16, stages=16, chunks=8, micro_batches=16, tensor_ranks=8,
    ),
)  # fmt: skip


def prepared(row: Row) -> Simulation:
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
    rates = Rates(cluster=asked.config.cluster, efficiency=Efficiency(attention=row.attention), device=row.device)
    return replace(asked, rates=rates)


def by_arithmetic(row: ArithmeticRow, mfu: float) -> float:
    """Return a row's tokens per second and device at this share of the peak of bf16, by PaLM's count."""
    words = (f"model={row.model}", *PLAIN, *A_NODE, f"recompute={row.recompute}", "compile=none")
    words += ("strategy=tensor", "batch.micro_batch_sequences=1", f"batch.context_tokens={row.context_tokens}")
    tokens = row.micro_batches * row.context_tokens
    asked = simulation(read_config(compose_config([*words, f"batch.tokens_per_step={tokens}"])))
    peak = (row.like.device or H100).peak_flops("bf16")
    assert peak is not None
    computing = flops_per_token(asked.model.shape(), row.context_tokens).palm / (peak * mfu)
    waiting = 0.0 if row.tensor_ranks == 1 else row.tensor_ranks * asked.run().figures.time.exposed_seconds / tokens
    return (1 - row.bubble) / (computing + waiting)


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
    for row in BY_ARITHMETIC:
        found = by_arithmetic(row, prepared(row.like).run().mfu)
        rows.append(line(row.name, row.published, found, "by arithmetic", row.source))
    head = ["| run | published tokens/s a device | simulated | error | |", "|---|---|---|---|---|"]
    return "\n".join(
        [
            "# Simulated fleets against published rows",
            "",
            "Written by `python benchmarks/questions/simulated_fleets.py`. One set of efficiencies for every row: "
            f"products at {efficiency.products:.0%} of the peak, memory at {efficiency.memory:.0%}, links at "
            f"{efficiency.links:.0%} of the data sheet, {efficiency.launch_seconds * 1e6:.0f} us a launch; the first "
            "two were chosen over these rows together, none for a row of its own. torchtitan's attention is "
            f"FlashAttention 2, which reaches {FLASH_2_ON_HOPPER:.0%} of Hopper's peak (arXiv 2407.08608); all other "
            "attention is as fast as products. "
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
