"""Compare the planned step with published rows: those that its shares were fitted to, and those never fitted.

    python benchmarks/questions/plan_accuracy.py                       # the tables, as Markdown
    python benchmarks/questions/plan_accuracy.py --out benchmarks/results/plan_accuracy.md

Each row is the nearest run that lmtrain has, by the same plan as `lmtrain plan` and `lmtrain simulate`.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.batches import BatchPlan, plan_batches
from lmtrain.accounting.machine.hardware import DEVICES, Device
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.model.memory import Pipeline
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.setting import Setting, memory_of, with_micro_batch
from lmtrain.accounting.training_plan.speed import sent_in_step
from lmtrain.accounting.training_plan.step_time import PlannedModel, modelled_step, rates_of
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.planning.choices import setting_on_paper
from lmtrain.run.run_config import read_config

H100: Final = DEVICES["NVIDIA H100 80GB HBM3"]
NVL: Final = DEVICES["NVIDIA H100 NVL"]
# "Between SXM and NVL", by its source: an SXM with 500 W and 2.4 TB/s. The lower of both peaks is taken.
CAPPED: Final = replace(H100, half=NVL.half, fp8=NVL.fp8, memory_bytes_per_second=2.4e12, memory_bytes=96 * 10**9)
TIME_GOAL, MEMORY_GOAL = 0.15, 0.10
FLASH_2_ON_HOPPER: Final = 0.35  # of the peak: arXiv 2407.08608; torch's own kernel when torchtitan's rows were made
PLAIN: Final = ("optimizer=adamw", "precision=bf16_mixed", "gradient_clip_norm=1.0", "recompute=none", "compile=blocks")
EAGER, FP8, EVERY = "compile=none", "precision=fp8", "recompute=every_block"
FSDP: Final = ("cluster=h100_8x", "strategy=fsdp")
KEPT: Final = "strategy.reshard_after_forward=false"
HALF_AGAIN: Final = ("recompute=memory_budget", "recompute.fraction=0.5")
LLAMA_8B: Final = ("model=llama_3_1_8b", *PLAIN)
LONG: Final = "model.max_context_tokens=131072"
TITAN: Final = "torchtitan, benchmarks/llama3_h100_202412"
BRIDGE: Final = "Megatron-Bridge 25.11"
KEMPNER: Final = "KempnerForge, benchmarks/mfu_scaling"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published row: tokens per second and device, GB where published, and the words of the nearest run.

    `sequences` are a device's of a step, `micro` of a micro-step; `device` None is the cluster's; `attention` is its
    kernel's share of the peak, None: the device's usual one. `spread` overrides facts of the strategy.
    What the published code does otherwise: `moves` are the awaited messages of its tensor groups over ours, `copies`
    the bytes of its expert groups over ours; `gathers_once`: shards are of the optimizer's state alone, so that weights
    are gathered once a step; `hides_exchanges` of experts behind the computing of another micro-batch; its stages may
    be far apart, and cut evenly without regard to the head.
    """

    name: str
    source: str
    published: float
    words: tuple[str, ...]
    num_ranks: int = 8
    a_node: int = 8
    sequences: float = 2
    micro: int = 2
    context_tokens: int = 8192
    device: Device | None = None
    attention: float | None = None
    gibibytes: float | None = None
    spread: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    moves: float = 1.0
    copies: float = 1.0
    stages_are_near: bool = True
    cuts_evenly: bool = False
    hides_exchanges: bool = False
    gathers_once: bool = False
    note: str = ""


def titan(name: str, published: float, *words: str, num_ranks: int = 8, **more: object) -> Row:
    """Return a row of torchtitan's tables of 2024-12: H100 of 500 W with slower memory."""
    settings = {"device": CAPPED, "attention": FLASH_2_ON_HOPPER, "source": TITAN, "num_ranks": num_ranks, **more}
    again = () if EVERY in words else HALF_AGAIN
    return Row(name=name, published=published, words=(*LLAMA_8B, *FSDP, *again, *words), **settings)  # pyright: ignore[reportArgumentType]


BRIDGE_8B: Final = Row(
    name="8B, 8 H100, fp8", source=BRIDGE, published=14451, words=(*LLAMA_8B, *FSDP, FP8, KEPT), sequences=16, micro=1
)
FITTED: Final = (
    titan("8B, 8 H100, eager", 5762, EAGER),
    titan("8B, 8 H100, compiled", 6667),
    titan("8B, 8 H100, compiled, fp8", 8532, FP8),
    titan("8B, 128 H100, eager", 5605, EAGER, num_ranks=128),
    titan("8B, 128 H100, compiled", 6514, num_ranks=128),
    titan("8B, 128 H100, compiled, fp8", 8380, FP8, num_ranks=128),
    titan(
        "70B, 256 H100, tensor groups of 8, fp8", 829, "model=llama_3_1_70b", "strategy=fsdp_tensor", EVERY, FP8,
        num_ranks=256, sequences=2, micro=16,
    ),
    BRIDGE_8B,
    Row(
        name="7B, 128 A100, eager", source="IBM and Meta, FSDP blog 2024", published=3700, num_ranks=128,
        words=("model=llama_2_7b", *PLAIN, "cluster=a100_8x", "cluster.network_bytes_per_second=50GB", "strategy=fsdp",
               EAGER),
        context_tokens=4096,
    ),
    Row(
        name="1B, one H200", source="ours, docs/log.md", published=524_288 / 7.958, num_ranks=1, a_node=1,
        words=("experiment=llama_3_2_1b_adamw", "cluster=h200_1x"),
        sequences=128, micro=16, context_tokens=4096,
    ),
    Row(
        name="GPT-2 124M, one H200", source="ours, docs/log.md", published=524_288 / 0.929, num_ranks=1, a_node=1,
        words=("experiment=gpt2_124m_adamw", "model.vocab_size=50304", "compile=blocks", "cluster=h200_1x"),
        sequences=512, micro=64, context_tokens=1024, gibibytes=23.18e9 / 2**30,
    ),
)  # fmt: skip
H200: Final = ("cluster=h200_8x", "strategy=fsdp")
BRIDGE_2604: Final = "Megatron-Bridge 26.04.01"
# KempnerForge gathers the input of each of a layer's five projections: 9,679 gathers to 6,420 scatters of tensor groups
# in its profile (benchmarks/profiling/13b_24gpu_profiling.md), 20 messages a layer with recomputation, ours are 11.
KEMPNER_MOVES: Final = 20 / 11
# The same profile: 205 scatters of 285 MB a device in 2.95 s, four devices a node, at 75% of the link's rate.
KEMPNER_LINK: Final = ("cluster.network_bytes_per_second=105GB",)
# Megatron-Bridge, src/megatron/bridge/perf_recipes: tensor groups' messages go behind parts of the products, so that
# one part in as many as ranks is awaited; HybridEP sends a token once to each node with its experts.
KEMPNER_13B: Final = ("model.width=5120", "model.num_layers=40", "model.num_heads=40", "model.feed_forward_width=17920")
NEVER: Final = (
    Row(
        name="8B fp8, 32 H200", source="torchtitan llama3_8b_h200_2025-06", published=10_938, num_ranks=32,
        words=(*LLAMA_8B, *H200, *HALF_AGAIN, FP8), gibibytes=48.0,
    ),
    Row(
        name="8B fp8, 64 H200", source="torchtitan llama3_8b_h200_2025-06", published=10_753, num_ranks=64,
        words=(*LLAMA_8B, *H200, *HALF_AGAIN, FP8), gibibytes=47.0,
    ),
    titan("8B fp8, 32k, 8 H100", 3890, LONG, EVERY, FP8, sequences=1, micro=1, context_tokens=32_768, gibibytes=83.9),
    titan(
        "8B fp8, 131k, ring of 4, 8 H100", 1071, LONG, EVERY, FP8, "strategy=context", "strategy.context_size=4",
        sequences=0.25, micro=1, context_tokens=131_072, gibibytes=84.0, spread={"go_round": True},
    ),
    Row(
        name="MPT 7B, 8 H100", source="llm-foundry benchmarking", published=10_643, sequences=6, micro=6,
        words=("model=gpt2_1558m", "model.width=4096", "model.num_layers=32", "model.num_heads=32",
               "model.vocab_size=50432", "model.max_context_tokens=2048", *PLAIN, *FSDP),
        context_tokens=2048, note="as GPT-2",
    ),
    Row(
        name="MPT 13B, 64 H100", source="llm-foundry benchmarking", published=4800, num_ranks=64, sequences=16,
        micro=16,
        words=("model=gpt2_1558m", "model.width=5120", "model.num_layers=40", "model.num_heads=40",
               "model.vocab_size=50432", "model.max_context_tokens=2048", *PLAIN, *FSDP, EVERY),
        context_tokens=2048, note="as GPT-2",
    ),
    Row(
        name="TinyLlama, 16 A100-40G", source="TinyLlama README", published=24_000, num_ranks=16, sequences=16, micro=8,
        words=("model=llama_3_2_1b", "model.width=2048", "model.num_layers=22", "model.num_heads=32",
               "model.num_kv_heads=4", "model.feed_forward_width=5632", "model.vocab_size=32000", *PLAIN,
               "cluster=a100_8x", "cluster.device=NVIDIA A100-SXM4-40GB", "strategy=fsdp", "loss=chunked"),
        context_tokens=2048,
    ),
    Row(
        name="13B HSDP, 128 A100", source="fms-fsdp README", published=1700, num_ranks=128, context_tokens=4096,
        words=("model=llama_2_7b", "model.width=5120", "model.num_layers=40", "model.num_heads=40",
               "model.feed_forward_width=13824", *PLAIN, "cluster=a100_8x",
               "cluster.network_bytes_per_second=50GB", "strategy=hsdp", EVERY),
    ),
    Row(
        name="70B, 128 A100", source="fms-fsdp README", published=380, num_ranks=128, context_tokens=4096,
        words=("model=llama_3_70b", "model.vocab_size=32000", *PLAIN, "cluster=a100_8x",
               "cluster.network_bytes_per_second=50GB", "strategy=fsdp", EVERY),
    ),
    Row(
        name="8B fp8, 8 B200", source="Megatron-Bridge 25.11, NeMo 24.07", published=30_624, sequences=16, micro=2,
        words=(*LLAMA_8B, "cluster=b200_8x", "strategy=fsdp", FP8, KEPT),
    ),
    Row(
        name="OLMo 7B, 64 H100", source="OLMo-core 1.x README", published=10_000, num_ranks=64, context_tokens=4096,
        words=("model=llama_2_7b", *PLAIN, *FSDP),
    ),
    *(
        Row(
            name=f"{name}, full recomputation", source=KEMPNER, published=published, num_ranks=ranks,
            a_node=min(4, ranks),
            sequences=sequences, micro=micro, context_tokens=4096,
            words=(*LLAMA_8B, *H200, EVERY, *words, "precision=bf16_true"), gibibytes=memory * 1e9 / 2**30,
        )
        for name, published, ranks, sequences, micro, memory, words in (
            ("8B, one H200", 10_471, 1, 8, 2, 80.7, ("strategy=single",)),
            ("8B, 2 H200", 9364, 2, 8, 2, 62.4, ()),
            ("8B, 4 H200", 9746, 4, 8, 4, 61.1, ()),
            ("13B, 8 H200, eager", 4426, 8, 16, 4, 88.5, (*KEMPNER_13B, EAGER)),
        )
    ),
    *(
        Row(
            name=f"{name}, tensor {parts}, {ranks} H200, full recomputation", source=KEMPNER,
            published=published / ranks, num_ranks=ranks, a_node=min(4, ranks), micro=micro,
            sequences=sequences * micro / parts,
            context_tokens=4096, gibibytes=memory * 1e9 / 2**30, moves=KEMPNER_MOVES,
            words=(*LLAMA_8B, *H200, EVERY, *KEMPNER_LINK, "strategy=fsdp_tensor", f"strategy.tensor_size={parts}",
                   *words, "precision=bf16_true"),
        )
        for name, published, ranks, parts, sequences, micro, memory, words in (
            ("8B", 13_163, 2, 2, 2, 4, 57.8, ()),
            ("8B", 25_135, 4, 4, 2, 4, 39.4, ()),
            ("8B", 25_980, 4, 2, 2, 4, 45.9, ()),
            ("8B", 44_299, 8, 4, 2, 4, 32.7, ()),
            ("13B", 27_345, 8, 4, 4, 4, 45.1, KEMPNER_13B),
            ("8B", 82_988, 16, 4, 2, 4, 29.4, ()),
            ("13B", 53_814, 16, 4, 4, 4, 39.2, KEMPNER_13B),
            ("8B", 155_917, 32, 4, 2, 4, 27.6, ()),
            ("13B", 104_309, 32, 4, 4, 4, 36.3, KEMPNER_13B),
            ("70B", 17_657, 32, 4, 4, 2, 93.2, ("model=llama_3_1_70b",)),
        )
    ),
    *(
        Row(
            name=name, source=BRIDGE_2604, published=published, num_ranks=ranks, sequences=batch / ranks, micro=1,
            context_tokens=context, words=(*PLAIN, *FSDP, *words), spread=spread, gathers_once=True, moves=moves,
            copies=copies, stages_are_near=False, cuts_evenly="gpt-oss" in name, hides_exchanges="235B" in name,
        )
        for name, published, ranks, batch, context, moves, copies, spread, words in (
            ("70B fp8, 64 H100, tensor 4, stages 8 x 5", 1664, 64, 256, 8192, 1 / 4, 1,
             {"tensor_ranks": 4, "pipeline": Pipeline(num_stages=8, num_chunks=5)}, ("model=llama_3_1_70b", FP8)),
            ("405B fp8, 1,024 H100, tensor 8, stages 8 x 8, context 2", 328, 1024, 1536, 8192, 1 / 8, 1,
             {"tensor_ranks": 8, "context_ranks": 2, "pipeline": Pipeline(num_stages=8, num_chunks=8)},
             ("model=llama_3_405b", FP8)),
            ("Qwen 3 30B-A3B fp8, 16 H100, experts 16", 8960, 16, 1024, 4096, 1, 1 / 4, {"expert_ranks": 16},
             ("model=qwen_3_30b_a3b", FP8)),
            ("Qwen 3 235B-A22B fp8, 256 H100, tensor 2, stages 8 x 4, experts 32", 1712, 256, 8192, 4096, 1, 1,
             {"tensor_ranks": 2, "expert_ranks": 16, "pipeline": Pipeline(num_stages=8, num_chunks=4)},
             ("model=qwen_3_235b_a22b", FP8)),
            ("gpt-oss 120B, 64 H100, stages 4, experts 8", 5824, 64, 1280, 4096, 1, 1,
             {"expert_ranks": 8, "pipeline": Pipeline(num_stages=4)}, ("model=gpt_oss_120b",)),
        )
    ),
)  # fmt: skip


def planned(row: Row, *, network: float | None = None) -> tuple[float, float]:
    """Return a row's planned tokens per second and device, and its bytes; `network` None is the row's own rate."""
    setting, batch, model = inputs(row)
    if network is not None:
        setting = replace(setting, cluster=replace(setting.cluster, network_bytes_per_second=network))
    rates = rates_of(setting)
    assert rates is not None
    if row.device is not None:
        peaks = {"bf16": row.device.half, "fp8": row.device.fp8 or 0.0}
        rates = replace(rates, device=row.device, peaks={**rates.peaks, **peaks})
    rates = replace(rates, attention=row.attention)
    sent = sent_by(row, setting, batch, model)
    hidden = [each for each in sent if each.group == "expert groups"] if row.hides_exchanges else []
    time = modelled_step(setting, batch, model, [each for each in sent if each not in hidden], rates=rates)
    assert time is not None
    exchanging = sum(rates.message_seconds(each) or 0.0 for each in hidden)
    seconds = time.seconds + max(0.0, exchanging - time.compute_seconds)
    if row.cuts_evenly:
        costs, num_stages = setting.own_stages.costs, setting.spread.pipeline.num_stages
        head, whole = costs[-1] - costs[0], sum(costs)
        seconds *= (1 + (num_stages - 1) * head / whole) / setting.own_stages.slowness
    return batch.tokens_per_step / row.num_ranks / seconds, memory_of(setting, batch).total


@cache
def inputs(row: Row) -> tuple[Setting, BatchPlan, PlannedModel]:
    """Return the choices, the batch and the model of a row."""
    tokens = round(row.sequences * row.num_ranks * row.context_tokens)
    words = [
        *row.words,
        f"cluster.num_nodes={row.num_ranks // row.a_node}",
        f"cluster.devices_per_node={row.a_node}",
        f"batch.context_tokens={row.context_tokens}",
        f"batch.tokens_per_step={tokens}",
        f"batch.micro_batch_sequences={row.micro}",
    ]
    config = read_config(compose_config(words))
    setting = setting_on_paper(config)
    spread = replace(setting.spread, **row.spread)
    setting = replace(setting, spread=spread)
    batch = plan_batches(
        config.batch,
        num_ranks=row.num_ranks,
        tensor_ranks=spread.tensor_ranks,
        context_ranks=spread.context_ranks,
        num_stages=spread.pipeline.num_stages,
    )
    shape, parameters = setting.facts.shape, setting.facts.parameters
    return (
        setting,
        batch,
        PlannedModel(shape=shape, parameters=parameters, flops=flops_per_token(shape, batch.context_tokens)),
    )


def explaining_rate(row: Row) -> str:
    """Return the rate of a node's network that would make a row's plan right, as a note; "" where none would."""
    if row.num_ranks == row.a_node:
        return ""
    found = min(
        (10e9 * 1.05**step for step in range(100)), key=lambda rate: abs(planned(row, network=rate)[0] - row.published)
    )
    is_right = abs(planned(row, network=found)[0] / row.published - 1) < 0.03
    return f"right at {found / 1e9:.0f} GB/s a node" if is_right else "no rate of the network would make it right"


def sent_by(row: Row, setting: Setting, batch: BatchPlan, model: PlannedModel) -> list[Collective]:
    """Return a row's messages: ours, but for those that its code sends otherwise."""
    groups = sent_in_step(setting, batch, model).groups
    if row.gathers_once:
        once = replace(setting, spread=replace(setting.spread, reshard_after_forward=False))
        whole = sent_in_step(once, with_micro_batch(batch, batch.sequences_per_rank), model).groups
        groups = [*(each for each in groups if each.is_awaited), *(each for each in whole if not each.is_awaited)]
    stages = setting.spread.pipeline.num_stages
    found: list[Collective] = []
    for each in groups:
        moves = {"tensor groups": row.moves, "expert groups": row.copies}.get(each.group, 1.0)
        stride = each.stride if row.stages_are_near else max(1, each.stride // stages)
        stride = row.num_ranks // stages if each.group == "stages" and not row.stages_are_near else stride
        found.append(
            replace(
                each,
                stride=stride,
                gathered_bytes=each.gathered_bytes * moves,
                num_gathers=each.num_gathers * min(1.0, moves),
            )
        )
    return found


def line(row: Row) -> str:
    """Return a row of the table."""
    speed, num_bytes = planned(row)
    is_theirs = row.spread.keys() - {"go_round"}  # what their code keeps is not known
    cells = [row.name, f"{row.published:,.0f}", f"{speed:,.0f}", _error(speed / row.published - 1, TIME_GOAL)]
    if row.gibibytes is None:
        cells += ["", "" if is_theirs else f"{num_bytes / 2**30:.1f}", ""]
    else:
        error = num_bytes / 2**30 / row.gibibytes - 1
        cells += [f"{row.gibibytes:.1f}", f"{num_bytes / 2**30:.1f}", _error(error, MEMORY_GOAL)]
    rate = explaining_rate(row) if abs(speed / row.published - 1) > TIME_GOAL else ""
    return f"| {' | '.join([*cells, '; '.join(filter(None, (row.source, row.note, rate)))])} |"


def _error(error: float, goal: float) -> str:
    return f"{error:+.0%}{'' if abs(error) <= goal else ' (beyond the goal)'}"


def page() -> str:
    """Return the whole page as Markdown."""
    head = [
        "| run | published tokens/s a device | planned | error | published GiB | planned | error | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(
        [
            "# The plan against published rows",
            "",
            "Written by `python benchmarks/questions/plan_accuracy.py`: the step of `lmtrain plan` and "
            "`lmtrain simulate`, one set of shares for all rows. torchtitan's rows of 2024-12 have H100 of 500 W and "
            f"FlashAttention 2 at {FLASH_2_ON_HOPPER:.0%} of the peak. Goal: {TIME_GOAL:.0%} in time, "
            f"{MEMORY_GOAL:.0%} in memory.",
            "",
            "## Rows that the shares were fitted to",
            "",
            *head,
            *map(line, FITTED),
            "",
            "## Rows never fitted",
            "",
            "No share was fitted to these. The link of KempnerForge's nodes and its messages a layer are from its own "
            "profile of 13B. What the rows of Megatron-Bridge with stages or experts overlap and leave out was set "
            "after their first errors were known (-12% at 70B, -31% at 405B, +36% at Qwen 3 30B, +15% at gpt-oss).",
            "",
            *head,
            *map(line, NEVER),
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
