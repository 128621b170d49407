"""How time and memory grow: one dial at a time, beside the slope that arithmetic expects.

A step of a small Llama (eager, fp32) against depth, width, context, batch and vocabulary: CPU seconds and the bytes
that the backward pass keeps. Start-up against corpus size (opening it and reading a first batch) and config size
(composing and checking it with so many overrides). The time to append a metric against the length of a run.
A slope is that of a straight line through the upper half of the points, both axes logarithmic.

    OMP_NUM_THREADS=1 python benchmarks/questions/growth.py --hardware zen4_2cores       # about a minute
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.growth_plot import plot
from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.data.synthetic import synthetic
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.training.batches.training_batches import RankRows, TrainingBatches
from lmtrain.training.datamodule import TokenDataModule

RESULTS = Path(__file__).parents[1] / "results"
BASE: Final = {"layers": 2, "width": 128, "context": 128, "sequences": 2, "vocabulary": 1024}
DIALS: Final[dict[str, tuple[int, ...]]] = {
    "layers": (1, 2, 4, 8, 16),
    "width": (64, 128, 256, 512),
    "context": (64, 128, 256, 512, 1024),
    "sequences": (1, 2, 4, 8, 16),
    "vocabulary": (1024, 4096, 16384, 65536),
}
# The largest slopes that arithmetic allows: products of D x D grow with its square, causal attention with T's.
EXPECTED: Final = {
    "layers": (1.0, 1.0),
    "width": (2.0, 1.0),
    "context": (2.0, 1.0),  # attention keeps no T x T scores: memory is linear
    "sequences": (1.0, 1.0),
    "vocabulary": (1.0, 1.0),
}
TOLERANCE: Final = 0.15
STEPS: Final = 5
Curve = dict[str, Any]


def step_cost(dial: str, value: int) -> tuple[float, int]:
    """Return the CPU seconds of a step (median) and the bytes that its backward pass keeps."""
    size = BASE | {dial: value}
    model = Llama(
        width=size["width"],
        num_layers=size["layers"],
        num_heads=size["width"] // 64,
        feed_forward_width=8 * size["width"] // 3,
        vocab_size=size["vocabulary"],
        max_context_tokens=size["context"],
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(size["vocabulary"], (size["sequences"], size["context"] + 1))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def step() -> None:
        total = model(tokens[:, :-1], tokens[:, 1:], CrossEntropy())
        (total.objective / total.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seconds = [timed(step) for _ in range(STEPS)]
    return statistics.median(seconds), sum(size for place, size in kept.items() if place not in weights)


def timed(action: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    began = time.process_time()
    action()
    return time.process_time() - began


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Fit a straight line to the logarithms of the upper half of the points."""
    upper = points[len(points) // 2 - 1 :]
    x, y = np.log([point[0] for point in upper]), np.log([max(point[1], 1e-12) for point in upper])
    return float(np.polyfit(x, y, 1)[0])


def curve(name: str, unit: str, points: Sequence[tuple[float, float]], *, expected: float) -> Curve:
    """Judge one curve against the slope that arithmetic expects."""
    found = slope(points)
    return {
        "name": name,
        "unit": unit,
        "points": [list(point) for point in points],
        "slope": found,
        "expected_at_most": expected,
        "ok": found <= expected + TOLERANCE,
    }


def dials() -> list[Curve]:
    """Turn one dial at a time; the middle settings repeat in every curve."""
    curves: list[Curve] = []
    for dial, values in DIALS.items():
        costs = [(value, *step_cost(dial, value)) for value in values]
        time_slope, memory_slope = EXPECTED[dial]
        curves += [
            curve(f"step time against {dial}", "s", [(at, cost) for at, cost, _ in costs], expected=time_slope),
            curve(f"step memory against {dial}", "bytes", [(at, kept) for at, _, kept in costs], expected=memory_slope),
        ]
    return curves


def corpus(folder: Path) -> Curve:
    """Time opening a corpus and reading its first batch."""
    batch = plan_batches(Batch(context_tokens=128, tokens_per_step=256))

    def first_batch(path: Path) -> None:
        module = TokenDataModule(folder=path, batch=batch, seed=0)
        rows, order = module.rows_in_order()
        next(iter(TrainingBatches(rows, RankRows(order, batch=batch, rank=0, start_step=0))))

    points: list[tuple[float, float]] = []
    for num_tokens in (10**5, 10**6, 10**7):
        path = synthetic(root=str(folder), num_tokens=num_tokens)
        points.append((num_tokens, min(timed(partial(first_batch, path)) for _ in range(5))))
    return curve("start-up against corpus tokens", "s", points, expected=0.0)


def config() -> Curve:
    """Time composing and checking a config with so many overrides."""
    words = [f"callbacks.progress.every_seconds={number}" for number in range(1, 33)]

    def check(num: int) -> None:
        read_config(compose_config(words[:num])).checked()

    points = [(num, min(timed(partial(check, num)) for _ in range(3))) for num in (1, 4, 16, 32)]
    return curve("start-up against config overrides", "s", points, expected=1.0)


def metrics(folder: Path) -> Curve:
    """Time appending one point to the log of a run that is so long already."""
    points: list[tuple[float, float]] = []
    log = RunLog(folder / "metrics")
    step = 0
    for length in (10**3, 10**4, 10**5):
        while step < length:
            step += 1
            log.extend([Point(time.time(), step, step, {"train/loss": 1.0})])
        began = time.process_time()
        for _ in range(1000):
            step += 1
            log.extend([Point(time.time(), step, step, {"train/loss": 1.0})])
        points.append((length, (time.process_time() - began) / 1000))
    log.close()
    return curve("metrics latency against steps of the run", "s", points, expected=0.0)


def main() -> int:
    """Measure, print a table, and keep plots where `--hardware` names the machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--hardware", help="word for the results' file names, such as zen4_2cores; without it no file is written"
    )
    hardware = parser.parse_args().hardware
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "metrics").mkdir()
        curves = [*dials(), corpus(folder), config(), metrics(folder)]
    print("| curve | from | to | slope | at most | |\n|---|---|---|---|---|---|")
    for each in curves:
        (first, low), (last, high) = each["points"][0], each["points"][-1]
        verdict = "as expected" if each["ok"] else "**worse**"
        ends = f"{low:.3g} {each['unit']} at {first:,} | {high:.3g} {each['unit']} at {last:,}"
        print(f"| {each['name']} | {ends} | {each['slope']:.2f} | {each['expected_at_most']:.1f} | {verdict} |")
    if hardware:
        stem = f"growth_{hardware}_{time.strftime('%Y%m')}"
        (RESULTS / f"{stem}.json").write_text(
            json.dumps({"torch": torch.__version__, "curves": curves}, indent=1) + "\n"
        )
        (RESULTS / f"{stem}.svg").write_text(plot(curves))
    return 0 if all(each["ok"] for each in curves) else 1


if __name__ == "__main__":
    sys.exit(main())
