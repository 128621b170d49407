"""What a step must take at least, by part: FLOPs at the data sheet's peak, or bytes at its bandwidth. Not measured.

    python benchmarks/questions/expected_step.py            # the table of docs/performance.md, for one H200

Products and their bounds come from accounting/training_plan/roofline.py and the models' own layers. Of what is
elementwise the bytes are counted as if every fused group of operations read and wrote its numbers once; the residual
stream is fp32.
"""

from typing import Final

from benchmarks.harness.hopper.attention import shapes
from benchmarks.harness.hopper.cases import CASES, composed, meta_model
from benchmarks.harness.hopper.ceilings_page import table
from benchmarks.harness.hopper.products import Layer, layers
from lmtrain.accounting.machine.hardware import DEVICES, Device, MatmulDtype
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.roofline import product_time

DEVICE: Final = "NVIDIA H200"
PARTS: Final = (
    "products of the blocks",
    "products of the head",
    "attention",
    "elementwise",
    "cross-entropy",
    "optimizer",
)
EXECUTED: Final = 14  # attention's products: 2 forward, 5 backward with what flash recomputes, 2 FLOPs a term
LOGIT_BYTES: Final = 12  # six passes over logits in bf16
OPTIMIZER_BYTES: Final = 38  # a parameter: norm 4, step 28, copy in bf16 6


def bounds(model: str, device: Device, *, blocks: MatmulDtype = "bf16", head: MatmulDtype = "bf16") -> dict[str, float]:
    """Return the least seconds a token by part, with the products of blocks and head in these formats; no casts."""
    case = next(case for case in CASES if case.name == model)
    config = composed(case, is_toy=False)
    shape, batch = meta_model(config).shape(), config["batch"]
    mine = [layer for layer in layers(is_toy=False) if layer.model == model]
    of_head, of_blocks = mine[-1], mine[:-1]
    num_tokens = batch["micro_batch_sequences"] * batch["context_tokens"]
    terms = sum(one.count * one.num_pairs * one.head_width for one in shapes(is_toy=False) if one.model == model)
    bandwidth = device.memory_bytes_per_second
    return {
        "products of the blocks": sum(_product_seconds(layer, device, blocks) for layer in of_blocks),
        "products of the head": _product_seconds(of_head, device, head),
        "attention": EXECUTED * terms / num_tokens / device.half,
        "elementwise": 3 * sum(_elementwise_bytes(layer) for layer in of_blocks) / bandwidth,
        "cross-entropy": LOGIT_BYTES * of_head.num_outputs / bandwidth,
        "optimizer": OPTIMIZER_BYTES * shape.num_parameters / batch["tokens_per_step"] / bandwidth,
    }


def _product_seconds(layer: Layer, device: Device, dtype: MatmulDtype = "bf16") -> float:
    """Return the bound of a layer's three products a token, over all layers like it."""
    sizes = (layer.num_rows, layer.num_inputs, layer.num_outputs)
    total = 0.0
    for rows, inner, columns in (sizes, (sizes[0], sizes[2], sizes[1]), (sizes[2], sizes[0], sizes[1])):
        found = product_time(device, dtype, num_rows=rows, num_inner=inner, num_columns=columns)
        assert found is not None
        total += found.seconds
    return layer.count * total / layer.num_rows


def _elementwise_bytes(layer: Layer) -> int:
    """Count a token's bytes around a layer, forward: norm and residual around a sublayer, what an activation takes."""
    name = layer.name.rpartition(".")[2]
    per_layer = {
        "qkv": 12 * layer.num_inputs + 4 * layer.num_outputs,  # norm and residual, heads rotated
        "up": 12 * layer.num_inputs + 2 * layer.num_outputs,
        "gate_up": 12 * layer.num_inputs + 2 * layer.num_outputs,
        "down": 2 * layer.num_inputs,
    }
    return layer.count * per_layer.get(name, 0)


def page(device: Device = DEVICES[DEVICE]) -> str:
    """Return the table: microseconds a token by part and model, and the tokens per second that they bound."""
    found = {case.name: bounds(case.name, device) for case in CASES}
    lines = [[part, *(f"{1e6 * found[name][part]:.3f}" for name in found)] for part in PARTS]
    totals = {name: sum(parts.values()) for name, parts in found.items()}
    lines.append(["sum", *(f"{1e6 * seconds:.3f}" for seconds in totals.values())])
    lines.append(["tokens/s at most", *(f"{1 / seconds:,.0f}" for seconds in totals.values())])
    lines.append(["MFU (PaLM)", *(f"{_mfu(name, seconds, device):.0%}" for name, seconds in totals.items())])
    for name, head in (("blocks in fp8: tokens/s at most", "bf16"), ("head in fp8 too", "fp8")):
        narrow = [sum(bounds(model, device, blocks="fp8", head=head).values()) for model in found]
        lines.append([name, *(f"{1 / seconds:,.0f}" for seconds in narrow)])
    return table(["expected, µs a token", *found], lines)


def _mfu(model: str, seconds: float, device: Device) -> float:
    config = composed(next(case for case in CASES if case.name == model), is_toy=False)
    flops = flops_per_token(meta_model(config).shape(), config["batch"]["context_tokens"])
    return flops.palm / seconds / device.half


if __name__ == "__main__":
    print(page())
