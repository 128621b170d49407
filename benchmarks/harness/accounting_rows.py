"""The figures of results/accounting_oracles.md, a function a section. accounting_oracles.py writes the page."""

import math
from functools import cache
from typing import TypeVar

import torch

from benchmarks.harness.accounting_row import Row
from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.fleet import FleetRun, solve
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.model.flops import flops_per_token, matmul_flops
from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.model.optimizer_state import FP32_BYTES
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.training_plan.utilization import model_flops_utilization, usd
from lmtrain.evaluation.bits_per_byte import BitsPerByte
from lmtrain.models.nano import short_window
from lmtrain.optim.schedules import trapezoid, warmup_cosine
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.schema.check import check_node
from lmtrain.run.schema.facts import Facts, require_facts
from lmtrain.run.schema.node import instantiate

H100 = "NVIDIA H100 80GB HBM3"
H100_FLOPS = 989.4e12
DAY = 86_400


def hardware() -> list[Row]:
    """Dense peaks in TFLOP/s of bf16, tf32, fp32, fp8; GB; TB/s."""
    sparse = '"1979 TFLOP/s" in bf16 is with 2:4 sparsity, which training does not have'
    table: dict[str, tuple[float | None, ...]] = {
        H100: (989.4, 494.7, 66.9, 1978.9, 80, 3.35),
        "NVIDIA H100 PCIe": (756, 378, 51, 1513, 80, 2.0),
        "NVIDIA H100 NVL": (835, 417, 60, 1670, 94, 3.9),
        "NVIDIA H200": (989.4, 494.7, 66.9, 1978.9, 141, 4.8),
        "NVIDIA A100-SXM4-40GB": (312, 156, 19.5, None, 40, 1.555),
        "NVIDIA A100-SXM4-80GB": (312, 156, 19.5, None, 80, 2.039),
        "NVIDIA B200": (2250, 1125, 75, 4500, 180, 8.0),
        "NVIDIA L4": (121, None, None, None, 24, None),
        "NVIDIA L40S": (362, None, None, None, 48, None),
        "NVIDIA GeForce RTX 4090": (165.2, None, None, None, 24, None),
    }
    rows: list[Row] = []
    for name, reference in table.items():
        device = find_device(name)
        assert device
        peaks = [None if peak is None else peak / 1e12 for peak in (device.half, device.tf32, device.fp32, device.fp8)]
        ours = [*peaks, device.memory_bytes / 1e9, device.memory_bytes_per_second / 1e12]
        kinds = ("bf16", "tf32", "fp32", "fp8", "memory", "bandwidth")
        units = ("TFLOP/s",) * 4 + ("GB", "TB/s")
        for kind, value, known, unit in zip(kinds, ours, reference, units, strict=True):
            if known is not None:
                assert value is not None
                note = sparse if name == H100 and kind == "bf16" else ""
                rows.append(Row(f"{name}, {kind}", value, known, unit, note))
    return rows


def horizons() -> list[Row]:
    """Batches, budgets, and what a log's speed implies."""
    batch = plan_batches(Batch(context_tokens=1024, tokens_per_step=1_048_576, micro_batch_sequences=8), num_ranks=8)
    seconds = 5000 * 2.84
    speed = batch.tokens_per_step / 2.84
    mfu = model_flops_utilization(6 * 336e6, tokens_per_second=speed, peak_flops=H100_FLOPS, num_devices=8)
    flops = 6 * 336e6 * 5000 * batch.tokens_per_step
    faster = flops / (8 * H100_FLOPS * 0.4)
    nano = horizon(
        Budget(tokens_per_parameter=8),
        tokens_per_step=2**20,
        num_active_parameters=729_810_624,
        flops_per_token=flops_per_token(_nano(24), 2048).palm,
    )
    llama = horizon(
        Budget(tokens=15_600_000_000_000), tokens_per_step=16_000_000, num_active_parameters=1, flops_per_token=1
    )
    log = "the log's own figure is its ETA; the utilization that it implies is what tells that something is slow"
    return [
        Row("tokens a step: 8 sequences x 16 micro-steps x 8 ranks x 1024", batch.tokens_per_step, 1_048_576),
        Row("micro-steps of that step", batch.accumulation_micro_steps, 16),
        Row("5000 such steps", 5000 * batch.tokens_per_step, 5_242_880_000, "tokens"),
        Row("5000 steps at 2.84 s", seconds / 3600, 3.944, "h", within=2e-4),
        Row("what remains of them after 21", (5000 - 21) * 2.84 / 3600, 3.928, "h", within=2e-4),
        Row("speed of that log (336M parameters, 8 H100)", speed, 369_217, "tokens/s", within=1e-5),
        Row("utilization that it implies", 100 * mfu, 9.4, "%", log, within=2e-3),
        Row("the same run at 40%", faster / 60, 55.7, "min", within=3e-3),
        Row("nano of depth 24, 8 tokens a parameter, 2^20 a step: steps", nano.steps, 5568),
        Row("its tokens", nano.tokens, 5_838_471_168),
        Row("its FLOPs", nano.flops, 2.788e19, within=2e-4),
        Row("15.6T tokens in steps of 16M", llama.steps, 975_000, "steps"),
        Row("15.6T tokens stored as ids of 4 bytes", 15.6e12 * 4 / 1e12, 62.4, "TB"),
    ]


def parameters() -> list[Row]:
    """Exact counts of real models on the meta device, and the estimate 12 d^2 L."""
    llama = shape_of("model=llama_3_2_1b", "tokenizer.vocab_size=300")
    gpt2, xl = (shape_of(f"model={name}", "tokenizer.vocab_size=300") for name in ("gpt2_124m", "gpt2_1558m"))
    d12, d24 = _nano(12), _nano(24)
    estimate = "an estimate without embedding, biases and norms; `lmtrain plan` prints the exact count"
    rows = [
        Row("GPT-2 small, tied", gpt2.num_parameters, 124_439_808, note='"117M" of the paper is a miscount'),
        Row("GPT-2 XL", xl.num_parameters, 1_557_611_200),
        Row("Llama 3.2 1B", llama.num_parameters, 1_235_814_400),
        Row("without its embedding", llama.num_parameters - llama.num_embedding_parameters, 973_146_112),
        Row("a layer of it", (llama.num_parameters - llama.num_embedding_parameters - 2048) / 16, 60_821_504),
        Row("12 d² L of d 2048, L 24", 12 * 2048**2 * 24, 1_207_959_552, note=estimate),
        Row("12 d² L of d 1024, L 12", 12 * 1024**2 * 12, 150_994_944, note=estimate),
        Row("d 2048, L 24, V 32000, tied", 12 * 2048**2 * 24 + 32_000 * 2048, 1_273_495_552, note='not "1.4B"'),
        Row("tying 50257 x 1024 saves", 50_257 * 1024, 51_463_168, "parameters"),
        Row("in fp32", 50_257 * 1024 * FP32_BYTES / 1e6, 205.9, "MB", within=5e-4),
    ]
    for depth, shape, total, scaling in ((12, d12, 286_261_730, 110_100_912), (24, d24, 1_384_122_122, 729_810_624)):
        rows.append(Row(f"nano of depth {depth}", shape.num_parameters, total))
        rows.append(Row("its matrices and head", shape.num_matmul_parameters, scaling))
    rows.append(Row("nano's short window in 2048 tokens", short_window(2048), 512, "tokens"))
    return rows


def flops() -> list[Row]:
    """Counts by both conventions, and single products."""
    causal = "of attention only what the mask leaves, as causal kernels do: {:.6e}; say which convention a number uses"
    d12, d24, whole = (flops_per_token(shape, 2048) for shape in (_nano(12), _nano(24), _nano(24, "L")))
    return [
        Row("6 N D of 405B on 15.6T", 6 * 405e9 * 15.6e12, 3.7908e25),
        Row("6 N D of 70B on 15T", 6 * 70e9 * 15e12, 6.3e24),
        Row("nano of depth 12, a token", d12.palm, 7.5970e8, note=causal.format(d12.causal), within=1e-5),
        Row("nano of depth 24, windows SSSL", d24.palm, 4.775225e9, note=causal.format(d24.causal), within=1e-6),
        Row(
            "nano of depth 24, all layers whole", whole.palm, 5.284833e9, note=causal.format(whole.causal), within=1e-6
        ),
        Row("[1024, 4096] x [4096, 4096]", matmul_flops(1024, 4096, 4096) / 1e9, 34.36, "GFLOP", within=2e-4),
        Row("[4, 8, 16, 32] x [32, 2]", matmul_flops(4 * 8 * 16, 32, 2), 65_536, "FLOP"),
        Row("1 PFLOP/s-day", 1e15 * DAY, 8.64e19, "FLOP", note="an amount of work, not a speed"),
    ]


def memory() -> list[Row]:
    """Bytes a parameter by optimizer and precision, and what models come to."""
    reference_model = '"20" counts a reference model, which only preference tuning has'
    rows = [
        Row("fp32 AdamW", _bytes("fp32", "adamw"), 16, "bytes", reference_model),
        Row("bf16 AdamW, nothing in fp32", _bytes("bf16_true", "adamw"), 8, "bytes"),
        Row(
            "bf16-mixed AdamW, no copies", _bytes("bf16_mixed", "adamw", copies=False), 16, "bytes", "as sharding does"
        ),
        Row("bf16-mixed AdamW, bf16 copies kept", _bytes("bf16_mixed", "adamw"), 18, "bytes"),
    ]
    for name, known in (("sgd", 8), ("momentum", 12), ("adagrad", 12), ("rmsprop", 12)):
        rows.append(Row(f"fp32 {name}", _bytes("fp32", name), known, "bytes"))
    rows.append(Row("fp32 adafactor, matrices", _bytes("fp32", "adafactor"), 8, "bytes", "8 to 10 with its vectors"))
    for billions, gigabytes, devices in ((1, 16, 1), (70, 1120, 14), (405, 6480, 81)):
        rows.append(Row(f"{billions}B, fp32 AdamW", billions * _bytes("fp32", "adamw"), gigabytes, "GB"))
        rows.append(Row("on so many H100", math.ceil(billions * 16e9 / 80e9), devices))
    sharded = _bytes("fp32", "adamw", num_shards=8)
    num_bytes = 49_152 * 12_288 * FP32_BYTES
    return [
        *rows,
        Row("fp32 AdamW sharded over 8, a device", sharded, 2, "bytes", "and the largest gathered block"),
        Row("49152 x 12288 in fp32", num_bytes, 2_415_919_104, "B"),
        Row("in GB = 1e9", num_bytes / 1e9, 2.416, "GB", within=5e-5),
        Row("in GiB = 2^30", num_bytes / 2**30, 2.25, "GiB"),
    ]


def money() -> list[Row]:
    """Prices are settings; these are the arithmetic."""
    run = solve(
        FleetRun(peak_flops=H100_FLOPS, num_parameters=8e9, tokens=160e9, num_devices=8, mfu=0.5, usd_per_gpu_hour=3.0)
    )
    return [
        Row("5 h at $18/h", usd(5 * 3600, num_devices=1, usd_per_gpu_hour=18), 90, "$"),
        Row("22 days at $24/h", usd(22 * DAY, num_devices=8, usd_per_gpu_hour=3), 12_672, "$"),
        Row("8B on 160B, 8 H100, 50%, $24/h", run.usd or 0, 12_937, "$", within=1e-4),
    ]


def schedules() -> list[Row]:
    """Multipliers of the learning rate."""
    again = "a cosine that goes on past its end rises again, a known bug elsewhere"
    rows = [
        Row(
            f"cosine to 10%, warm-up 1000 of 20000, step {step}",
            warmup_cosine(step, 20_000, warmup_steps=1000, final_fraction=0.1),
            value,
            note=again if step > 20_000 else "",
        )
        for step, value in ((0, 0.0), (500, 0.5), (1000, 1.0), (10_500, 0.55), (20_000, 0.1), (25_000, 0.1))
    ]
    for step, value in ((0, 0.025), (39, 1.0), (350, 1.0), (351, 0.9985), (675, 0.525), (1000, 0.05)):
        ours = trapezoid(step, 1000, warmup_steps=40, warmdown_fraction=0.65, final_fraction=0.05)
        rows.append(Row(f"trapezoid, warm-up 40, warm-down 65%, step {step} of 1000", ours, value, within=1e-4))
    return rows


def evaluation() -> list[Row]:
    """Bits per byte of a uniform model, and the cache of a nano."""
    uniform = BitsPerByte(nats=1000 * math.log(256), num_bytes=1000, num_tokens=1000)
    cache_bytes = sum(2 * layer.num_heads * layer.head_width * 2 for layer in _nano(24).attention)
    return [
        Row("uniform over 256 bytes, bits per byte", uniform.bits_per_byte, 8.0),
        Row("keys and values of nano depth 24 in bf16, a token", cache_bytes, 147_456, "bytes"),
    ]


def _bytes(precision: str, optimizer: str, *, num_shards: int = 1, copies: bool = True) -> float:
    """Return bytes a parameter of a model of hidden matrices alone."""
    count, by_role = 1_000_000, _facts("precision", precision, PrecisionFacts).bytes_of
    parameters = TrainedParameters(num_total=count, num_hidden_matrix=count, num_largest_block=0, num_outside_blocks=0)
    state = state_bytes(parameters, precision=by_role, optimizer=_facts("optimizer", optimizer, OptimizerFacts).state)
    held = by_role.weights + by_role.gradients + by_role.compute_copy * copies + state / count
    return math.ceil(held * count / num_shards) / count


F = TypeVar("F", bound=Facts)


@cache
def _facts(group: str, word: str, kind: type[F]) -> F:
    """Return what an option says of itself."""
    return require_facts(compose_config([f"{group}={word}"])[group], kind)


def _nano(depth: int, pattern: str = "SSSL") -> ModelShape:
    words = (f"model.depth={depth}", f"model.window_pattern={pattern}", "tokenizer.vocab_size=32768")
    return shape_of("model=nano", *words, "batch.context_tokens=2048", "batch.tokens_per_step=524288")


@cache
def shape_of(*words: str) -> ModelShape:
    """Build a model of the configuration without a byte of memory and return its shape."""
    node = check_node(compose_config([*words, "tokenizer=folder", "tokenizer.path=x"])["model"], key="model")
    with torch.device("meta"):
        return instantiate(node, key="model").shape()
