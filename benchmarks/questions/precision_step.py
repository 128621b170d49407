"""Compare casting weights once per optimizer step with autocast, which casts them in every micro-batch.

    python benchmarks/questions/precision_step.py     # peak memory and process time at 1, 4 and 16 micro-batches a step

The same model, data and AdamW; the two take turns, and the median of the ratios of neighbours counts. Both give the
same loss to the last bit, which is checked. Compiled block by block unless --eager.
"""

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable

import torch

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.llama import Llama
from lmtrain.parallel.compilation import compile_blocks
from lmtrain.precision.kept_copies import KeptCopies, keep_copies

SHAPE = {"width": 512, "num_layers": 4, "num_heads": 8, "feed_forward_width": 1536, "vocab_size": 8192}


def build(*, is_kept: bool, eager: bool, context_tokens: int) -> Callable[[torch.Tensor, int], float]:
    """Return a function that makes one optimizer step of so many micro-batches [B, T] and tells its last loss."""
    model = Llama(**SHAPE, max_context_tokens=context_tokens)
    model.initialize_weights(torch.Generator().manual_seed(0))
    if is_kept:
        keep_copies(model, dtype=torch.bfloat16)
    copies, loss = KeptCopies(model), ChunkedCrossEntropy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if not eager:
        compile_blocks(model)

    def step(tokens: torch.Tensor, accumulation: int) -> float:
        objective = torch.zeros(())
        for _ in range(accumulation):
            copies.refresh()
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                objective = model(tokens, tokens, loss).objective
            objective.backward()
        optimizer.step()
        copies.expire()
        optimizer.zero_grad()
        return objective.item()

    return step


def measure(
    *, accumulations: list[int], sequences: int, context_tokens: int, repeats: int, eager: bool
) -> list[tuple[int, float, float]]:
    """Return by accumulation the median seconds of a step under autocast and the ratio of kept copies to it."""
    tokens = torch.randint(8192, (sequences, context_tokens), generator=torch.Generator().manual_seed(1))
    autocast, kept = (build(is_kept=is_kept, eager=eager, context_tokens=context_tokens) for is_kept in (False, True))
    rows: list[tuple[int, float, float]] = []
    for accumulation in accumulations:
        seconds: list[float] = []
        ratios: list[float] = []
        for repeat in range(repeats + 1):
            losses: list[float] = []
            times: list[float] = []
            for step in (autocast, kept):
                start = time.process_time()
                losses.append(step(tokens, accumulation))
                times.append(time.process_time() - start)
            assert losses[0] == losses[1], f"not the same loss: {losses}"
            if repeat:  # the first compiles
                seconds.append(times[0])
                ratios.append(times[1] / times[0])
        rows.append((accumulation, statistics.median(seconds), statistics.median(ratios)))
    return rows


def peak_mib(*, is_kept: bool) -> float:
    """Return by how much two eager micro-batches of 64 tokens raise a process's peak, model and AdamW included."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    build(is_kept=is_kept, eager=True, context_tokens=64)(torch.zeros(1, 64, dtype=torch.int64), 2)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Print a table for a few sizes of micro-batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--accumulations", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--context-tokens", type=int, default=64)
    chosen = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        autocast, kept = (pool.apply(peak_mib, kwds={"is_kept": is_kept}) for is_kept in (False, True))
    print(f"peak of a process: autocast {autocast:.0f} MiB, kept copies {kept:.0f} MiB\n")
    print("| tokens a micro-batch | micro-batches a step | autocast, s | kept copies / autocast |\n|---|---|---|---|")
    for sequences in chosen.sequences:
        rows = measure(
            accumulations=chosen.accumulations,
            sequences=sequences,
            context_tokens=chosen.context_tokens,
            repeats=chosen.repeats,
            eager=chosen.eager,
        )
        for accumulation, seconds, ratio in rows:
            print(f"| {sequences * chosen.context_tokens} | {accumulation} | {seconds:.3f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
