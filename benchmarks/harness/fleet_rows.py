"""Figures of results/accounting_oracles.md: matrix products by device, and the time of fleets."""

from benchmarks.harness.accounting_row import Row
from benchmarks.harness.accounting_rows import DAY, H100, H100_FLOPS
from lmtrain.accounting.fleet import FleetPlan, FleetRun, solve
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.training_plan.roofline import MatrixProduct


def matrix_products() -> list[Row]:
    """FLOPs for each byte and the balance of devices."""
    thin, square, row = (
        MatrixProduct(num_rows=m, num_inner=8192, num_columns=n) for m, n in ((8192, 128), (8192, 8192), (1, 8192))
    )
    h100, a100 = (find_device(name) for name in (H100, "NVIDIA A100-SXM4-80GB"))
    assert h100
    assert a100
    return [
        Row("[8192, 8192] x [8192, 128]", thin.flops / thin.num_bytes("fp16"), 124.1, "FLOP/byte", within=5e-4),
        Row("[8192, 8192] x [8192, 8192]", square.flops / square.num_bytes("fp16"), 2730, "FLOP/byte", within=5e-4),
        Row(
            "[1, 8192] x [8192, 8192]",
            row.flops / row.num_bytes("fp16"),
            1,
            "FLOP/byte",
            "below 1: always memory",
            within=5e-4,
        ),
        Row("H100 in bf16", h100.half / h100.memory_bytes_per_second, 295, "FLOP/byte", within=2e-3),
        Row(
            "A100 in bf16",
            a100.half / a100.memory_bytes_per_second,
            156,
            "FLOP/byte",
            "with 2.0 TB/s; the sheet says 2.039",
            within=2e-2,
        ),
    ]


def fleets() -> list[Row]:
    """Days of large runs, and the largest model for a fleet."""
    largest = solve(FleetRun(peak_flops=H100_FLOPS, num_devices=32, hours=14 * 24, mfu=0.5))
    plan = FleetPlan(run=largest, asked=largest, peak_source="", device=find_device(H100))
    held = plan.most_parameters or 0
    needed = 6 * 405e9 * 15.6e12 / (27.4 * DAY * 16_000) / 1e12
    return [
        Row("70B on 15T, 1,024 H100, 50%", _days(70e9, 15e12, 1024, 0.5), 143.9, "days", 'not "88"', within=5e-4),
        Row("405B on 15.6T, 16,000 H100, 40%", _days(405e9, 15.6e12, 16_000, 0.4), 69.3, "days", within=5e-4),
        Row(
            "what 27.4 days for it would need of each",
            needed,
            1000,
            "TFLOP/s",
            '"27.4 days" is over the dense peak of 989.4',
            within=2e-3,
        ),
        Row("1.2735B on 300B, 8 H100, 50%", _days(1.2735e9, 300e9, 8, 0.5), 6.71, "days", within=1e-3),
        Row("Llama 3.2 1B on 20B, 8 H100, 40%", 24 * _days(1_235_814_400, 20e9, 8, 0.4), 13.0, "h", within=2e-3),
        Row("8B on 160B, 8 H100, 50%", _days(8e9, 160e9, 8, 0.5), 22.46, "days", within=5e-4),
        Row(
            "8B at 20 tokens a parameter, 8 H100, 50%",
            _hours(num_parameters=8e9, tokens_per_parameter=20) / 24,
            22.46,
            "days",
            within=5e-4,
        ),
        Row("7.68e21 FLOPs, 8 H100, 50%", _hours(flops=7.68e21) / 24, 22.46, "days", within=5e-4),
        Row(
            "largest compute-optimal model, 32 H100, 14 days, 50%",
            (largest.num_parameters or 0) / 1e9,
            12.63,
            "B",
            "C = 120 N², D = 20 N",
            within=5e-4,
        ),
        Row("its tokens", (largest.tokens or 0) / 1e9, 252.7, "B", within=5e-4),
        Row("its FLOPs", 6 * (largest.num_parameters or 0) * (largest.tokens or 0), 1.915e22, within=2e-4),
        Row("what their memory alone would hold", held / 1e9, 160, "B"),
    ]


def _hours(**work: float) -> float:
    return solve(FleetRun(peak_flops=H100_FLOPS, num_devices=8, mfu=0.5, **work)).hours or 0


def _days(num_parameters: float, tokens: float, devices: int, mfu: float) -> float:
    run = FleetRun(peak_flops=H100_FLOPS, num_parameters=num_parameters, tokens=tokens, num_devices=devices, mfu=mfu)
    return (solve(run).hours or 0) / 24
