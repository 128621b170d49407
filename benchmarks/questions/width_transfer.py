"""Does one learning rate stay best over widths? A coordinate check, and losses over widths and rates, with and without.

    python -m benchmarks.questions.width_transfer FOLDER                   # everything, then the page and its plot
    python -m benchmarks.questions.width_transfer FOLDER --seconds 100     # a piece of it; again, until nothing is left

A two-layer Llama (model=llama_micro, heads of 16) learns the bytes of Python's standard library with AdamW and a
trapezoid, 1,024 tokens a step. Every trial is kept in FOLDER as it ends; all are scored on the same held-out windows.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness.width_transfer_page import SCALINGS, best_of, check_table, loss_table, losses_of, plot

BASE_WIDTH: Final = 48
HEAD_WIDTH: Final = 16
WIDTHS: Final = (48, 96, 192)
CHECKED_WIDTHS: Final = (48, 96, 192, 384)
RATES: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
CHECKED: Final = {"adamw": "optimizer.lr=0.004", "muon": "optimizer.lr=0.01"}
CONTEXT_TOKENS, NUM_SEQUENCES, NUM_STEPS, CHECKED_STEPS = 128, 8, 200, 10
SEEDS: Final = (1, 2)
VERSION: Final = torch.__version__.partition("+")[0]
RESULTS: Final = Path(__file__).parents[1] / "results" / "width_transfer_zen4_2cores_202611.md"
PLOT: Final = Path(__file__).parents[2] / "docs" / "images" / "width_transfer.png"
INTRODUCTION: Final = f"""\
# One learning rate over three widths, and the coordinate check

`python -m benchmarks.questions.width_transfer FOLDER`, about 12 minutes of one thread; here of two shared Zen 4 cores,
with torch {VERSION}. Two layers, heads of {HEAD_WIDTH}, {NUM_STEPS} steps of {NUM_SEQUENCES} x {CONTEXT_TOKENS} bytes
of Python's standard library, gradients clipped at 1. `optimizer.lr` is what is typed, the same at every width.

![logits moved against width; loss against learning rate](../../docs/images/width_transfer.png)

## Held-out nats per byte
"""


@dataclass(frozen=True)
class Trial:
    """One training: its rule of scaling, width, learning rate at the base, and seed."""

    scaling: str
    width: int
    lr: float
    seed: int

    @property
    def file(self) -> str:
        """Name what is kept of it; at the base width both rules are the same training."""
        scaling = "base" if self.width == BASE_WIDTH else self.scaling
        return f"{scaling}-{self.width}-{self.lr:g}-{self.seed}.json"


@dataclass(frozen=True)
class Learner:
    """A model, its optimizer and its schedule, as a config says."""

    model: Any
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int, int], float]

    def step(self, tokens: Tensor, factor: float) -> None:
        """Take one optimizer step on ids [B, T + 1], at a share of each group's learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        self.optimizer.zero_grad()
        loss_of(self.model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def learner(width: int, scaling: str, *overrides: str, seed: int = 0) -> Learner:
    """Build what `train.py model=llama_micro scaling=...` trains, at a width."""
    from lmtrain.run.compose.compose import compose_config
    from lmtrain.run.run_config import read_config

    shape = [
        f"model.width={width}",
        f"model.num_heads={width // HEAD_WIDTH}",
        f"model.feed_forward_width={width * 11 // 4}",
    ]
    base = [f"scaling.base_width={BASE_WIDTH}"] if scaling == "width_transfer" else []
    words = [
        "model=llama_micro",
        "tokenizer=byte_level",
        "attention=sdpa",
        "model.num_layers=2",
        *shape,
        "+model.embedding_init_std=1.0",
    ]
    words += [f"batch.context_tokens={CONTEXT_TOKENS}", "schedule.warmup_fraction=0.1"]
    words += [f"scaling={scaling}", *base, *overrides]
    config = read_config(compose_config(words)).checked()
    model = config.model.build()
    model.initialize_weights(torch.Generator().manual_seed(seed))
    optimizer = config.optimizer.build()(model)
    return Learner(model, optimizer, config.schedule.build())


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    """Return the mean nats per token of ids [B, T + 1]."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def corpus() -> tuple[Tensor, Tensor]:
    """Return the bytes of the standard library's modules as ids: to train on, and the last twentieth held out."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    ids = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    split = len(ids) * 19 // 20
    return ids[:split], ids[split:]


def windows(ids: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Draw windows [num, T + 1]."""
    starts = torch.randint(len(ids) - CONTEXT_TOKENS - 1, (num,), generator=generator)
    return torch.stack([ids[start : start + CONTEXT_TOKENS + 1] for start in starts.tolist()])


def train(trial: Trial) -> dict[str, Any]:
    """Train and return the held-out loss."""
    began = time.process_time()
    learning, held_out = corpus()
    taught = learner(trial.width, trial.scaling, "optimizer=adamw", f"optimizer.lr={trial.lr}", seed=trial.seed)
    generator = torch.Generator().manual_seed(trial.seed)
    for step in range(NUM_STEPS):
        taught.step(windows(learning, NUM_SEQUENCES, generator), taught.schedule(step, NUM_STEPS))
    with torch.no_grad():
        loss = loss_of(taught.model, windows(held_out, 64, torch.Generator().manual_seed(0))).item()
    return {**asdict(trial), "loss": loss, "seconds": time.process_time() - began}


@torch.no_grad()
def activations(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Return what the last block gives, and the logits."""
    seen: dict[str, Tensor] = {}
    hook = model.blocks[-1].register_forward_hook(lambda block, given, result: seen.update(stream=result[0]))
    logits = model(tokens[:, :-1])
    hook.remove()
    return {**seen, "logits": logits}


def coordinates(width: int, scaling: str, optimizer: str) -> dict[str, list[float]]:
    """Return by how much activations have moved after each of ten steps on one batch: root mean squares."""
    tokens = windows(corpus()[0], 4, torch.Generator().manual_seed(0))
    checked = learner(width, scaling, f"optimizer={optimizer}", CHECKED[optimizer])
    first = activations(checked.model, tokens)
    moved: dict[str, list[float]] = {name: [] for name in first}
    for _ in range(CHECKED_STEPS):
        checked.step(tokens, 1.0)
        for name, now in activations(checked.model, tokens).items():
            moved[name].append((now - first[name]).square().mean().sqrt().item())
    return moved


def jobs(folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Name everything to measure, in order: the check, one seed of all rates, the other of those next to the best."""
    for optimizer in CHECKED:
        for scaling in SCALINGS:
            for width in CHECKED_WIDTHS:
                moved = {"optimizer": optimizer, "scaling": scaling, "width": width}
                yield f"check-{optimizer}-{scaling}-{width}.json", lambda m=moved: {**m, "moved": coordinates(**m)}
    for seed in SEEDS:
        for width in WIDTHS:
            for scaling in SCALINGS:
                for lr in RATES if seed == SEEDS[0] else near_best(read(folder), scaling, width):
                    trial = Trial(scaling, width, lr, seed)
                    yield trial.file, lambda t=trial: train(t)


def near_best(rows: Sequence[dict[str, Any]], scaling: str, width: int) -> list[float]:
    """Return the rate that was best with the first seed, and those beside it."""
    losses = losses_of(rows, scaling, width, seed=SEEDS[0])
    if not losses:
        return []
    best = RATES.index(best_of(losses))
    return [*RATES[max(0, best - 1) : best + 2]]


def read(folder: Path) -> list[dict[str, Any]]:
    """Read what is measured."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def measure(folder: Path, seconds: float) -> int:
    """Measure what is not there yet until the time is up; return how much is left."""
    folder.mkdir(parents=True, exist_ok=True)
    end, left = time.monotonic() + seconds, 0
    for name, job in jobs(folder):
        if (folder / name).exists():
            continue
        if time.monotonic() > end:
            left += 1
            continue
        found = job()
        (folder / name).write_text(json.dumps(found))
        print(name, found.get("loss", found.get("moved")), flush=True)
    return left


def main() -> int:
    """Measure, and write the page once all is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where every trial is kept")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no trial after so long")
    arguments = parser.parse_args()
    left = measure(arguments.folder, arguments.seconds)
    if not left:
        rows = read(arguments.folder)
        check = f"## How far activations have moved, root mean square ({', '.join(CHECKED.values())})"
        RESULTS.write_text(INTRODUCTION + "\n".join([*loss_table(rows), "", check, *check_table(rows), ""]))
        plot(rows, PLOT)
    print(f"{left} trials are left; call again" if left else f"{RESULTS.name} and {PLOT.name} are written")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
