"""Steps that others measured and published, and ours: a section of results/accounting_oracles.md."""

from benchmarks.harness.accounting_row import Row
from benchmarks.harness.accounting_rows import H100, shape_of
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.utilization import model_flops_utilization


def published_runs() -> list[Row]:
    """Steps of others' runs, at the utilization that they state, and the utilization that their speed comes to."""
    llama_2 = flops_per_token(shape_of("model=llama_2_7b", "tokenizer.vocab_size=300"), 4096).palm
    llama_3 = flops_per_token(shape_of("model=llama_3_1_8b", "tokenizer.vocab_size=300"), 8192).palm
    a100, h100 = (known for known in map(find_device, ("NVIDIA A100-SXM4-80GB", H100)) if known)
    step = 2 * 4096 * llama_2 / (a100.half * 0.57)
    what = "Llama 2 7B on 128 A100, 2 x 4096 tokens a device, at 57% MFU"
    rows = [Row(what, step, 2.21, "s a step", within=0.05)]
    for how, tokens_per_second, mfu in (("eager", 5762, 0.33), ("compiled", 6667, 0.39)):
        what, peak = f"Llama 3.1 8B on 8 H100, 2 x 8192 tokens a device, {how}", h100.half
        step = 2 * 8192 * llama_3 / (peak * mfu)
        told = 2 * 8192 / tokens_per_second
        rows.append(Row(f"{what}, at {mfu:.0%} MFU", step, told, "s a step", within=0.05))
        ours = model_flops_utilization(llama_3, tokens_per_second=tokens_per_second, peak_flops=peak, num_devices=1)
        speed = f"utilization at its {tokens_per_second:,} tokens/s a device"
        rows.append(Row(speed, 100 * ours, 100 * mfu, "%", within=0.05))
    return rows
