"""Compare compiled fp32 training steps whose products are MKL's with the same steps whose products are oneDNN's.

    OMP_NUM_THREADS=1 python benchmarks/questions/fp32_products.py    # on an AMD processor with AVX-512: 3 minutes

Two models with the same weights take a step each in turn, in process time: the median of the ratios of neighbours.
Also the share of products in a step of MKL's, by torch's profiler, and the losses of both.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.questions.compile import CONTEXT_TOKENS, NUM_SEQUENCES, VOCAB_SIZE, default_model
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.base import LanguageModel
from lmtrain.models.llama import Llama
from lmtrain.parallel.compilation import compile_whole
from lmtrain.precision.cpu_products import ONEDNN, MatmulPrecision, keeps_fp32, multiplying

WORDS: tuple[MatmulPrecision, MatmulPrecision] = ("highest", ONEDNN)
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def wide_model() -> LanguageModel:
    """Build a plain Llama of 4 layers of width 768."""
    sizes = {"width": 768, "num_layers": 4, "num_heads": 12, "feed_forward_width": 2048, "vocab_size": VOCAB_SIZE}
    model = Llama(**sizes, max_context_tokens=CONTEXT_TOKENS)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


@dataclass
class Steps:
    """A model's steps under one word: their seconds, losses, and that of the first, which compiles."""

    word: MatmulPrecision
    step: Callable[[], float]
    first_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def take(self) -> None:
        """Take a step."""
        with multiplying(self.word):
            start = time.process_time()
            self.losses.append(self.step())
            self.seconds.append(time.process_time() - start)


def make(build: Callable[[], LanguageModel], word: MatmulPrecision, *, is_bf16: bool) -> Steps:
    """Build a model and take its first step, which compiles."""
    model = compile_whole(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(VOCAB_SIZE, (NUM_SEQUENCES, CONTEXT_TOKENS + 1), generator=torch.Generator().manual_seed(1))
    loss = CrossEntropy()

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16, cache_enabled=False):
            total = model(tokens[:, :-1], tokens[:, 1:], loss)
        objective = total.objective / total.num_tokens
        objective.backward()
        optimizer.step()
        optimizer.zero_grad()
        return objective.item()

    steps = Steps(word, step)
    steps.take()
    steps.first_seconds = steps.seconds.pop()
    return steps


def share_of_products(steps: Steps) -> float:
    """Return the share of matrix products in the operators' own time over two steps."""
    with profile(activities=[ProfilerActivity.CPU]) as found, multiplying(steps.word):
        steps.step()
        steps.step()
    times = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    return sum(times.get(name, 0.0) for name in PRODUCTS) / sum(times.values())


def main() -> None:
    """Measure and print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="of neighbouring steps")
    parser.add_argument("--bf16", action="store_true", help="under autocast, as precision=auto has it")
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s); in fp32: {keeps_fp32(ONEDNN)}\n")
    print("| model | step by MKL, s | products in it | step by oneDNN, s | ratio | first step, s | gap of losses |")
    print("|---|---|---|---|---|---|---|")
    for name, build in (("default", default_model), ("width 768", wide_model)):
        pair = [make(build, word, is_bf16=chosen.bf16) for word in WORDS]
        for _ in range(chosen.pairs):
            for steps in pair:
                steps.take()
        mkl, onednn = pair
        ratios = [new / old for new, old in zip(onednn.seconds, mkl.seconds, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        gap = max(abs(new / old - 1) for new, old in zip(onednn.losses, mkl.losses, strict=True))
        print(
            f"| {name} | {statistics.median(mkl.seconds):.3f} | {share_of_products(mkl):.0%} | "
            f"{statistics.median(onednn.seconds):.3f} | {ratio:.3f} ({low:.3f} to {high:.3f}) | "
            f"{mkl.first_seconds:.1f}, {onednn.first_seconds:.1f} | {gap:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
