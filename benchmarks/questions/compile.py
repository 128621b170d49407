"""Steps per second of the default model: eager, compiled block by block, compiled whole.

 `python benchmarks/questions/compile.py --rounds 5`: forward, backward and a fused AdamW step on one batch, the three
interleaved in one process, so that what else the machine does meets them alike. CPU time of this process, and wall
time.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.attention.auto import auto
from lmtrain.models.base import LanguageModel
from lmtrain.models.llama import Llama
from lmtrain.parallel.compilation import compile_blocks, compile_whole, run_eagerly

CONTEXT_TOKENS, NUM_SEQUENCES, VOCAB_SIZE = 256, 8, 4096
STEPS_A_ROUND = 5
TRANSFORMS = {"eager": run_eagerly, "block by block": compile_blocks, "whole": compile_whole}


def default_model() -> LanguageModel:
    """Build what `model=llama_tiny` is with a vocabulary of 4,096."""
    model = Llama(
        width=128,
        num_layers=4,
        num_heads=2,
        feed_forward_width=512,
        vocab_size=VOCAB_SIZE,
        max_context_tokens=CONTEXT_TOKENS,
        attention=auto,
        activation="relu_squared",
        rope_base=10_000.0,
        norm_eps=1e-6,
        qk_norm=True,
        qk_norm_scale=1.2,
        embedding_skip=True,
        embedding_smear=True,
        key_smear=True,
        num_bigram_buckets=16_384,
        value_embedding_layers=(1, 3),
        embedding_init_std=1.0,
        head_init_std=0.0,
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


@dataclass
class Timed:
    """One way to run steps, and the seconds that each of its rounds took."""

    step: Callable[[], None]
    first_seconds: float = 0.0
    cpu_seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)

    def run_round(self) -> None:
        """Take some steps and note their time."""
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(STEPS_A_ROUND):
            self.step()
        self.cpu_seconds.append((time.process_time() - cpu) / STEPS_A_ROUND)
        self.wall_seconds.append((time.perf_counter() - wall) / STEPS_A_ROUND)


def make(transform: Callable[[LanguageModel], LanguageModel]) -> Timed:
    """Build a model and take its first step, which compiles."""
    model = transform(default_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(VOCAB_SIZE, (NUM_SEQUENCES, CONTEXT_TOKENS + 1))
    loss = CrossEntropy()

    def step() -> None:
        total = model(tokens[:, :-1], tokens[:, 1:], loss)
        (total.objective / total.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    start = time.perf_counter()
    step()
    return Timed(step, first_seconds=time.perf_counter() - start)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of 5 steps each")
    num_rounds = parser.parse_args().rounds
    timed = {name: make(transform) for name, transform in TRANSFORMS.items()}
    for _ in range(num_rounds):
        for each in timed.values():
            each.run_round()
    eager = statistics.median(timed["eager"].cpu_seconds)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), median of {num_rounds} rounds\n")
    print("| run | first step, s | CPU s/step | steps/s of CPU time | steps/s of wall time | against eager |")
    print("|---|---|---|---|---|---|")
    for name, each in timed.items():
        cpu, wall = statistics.median(each.cpu_seconds), statistics.median(each.wall_seconds)
        print(f"| {name} | {each.first_seconds:.1f} | {cpu:.3f} | {1 / cpu:.2f} | {1 / wall:.2f} | {eager / cpu:.2f} |")


if __name__ == "__main__":
    main()
