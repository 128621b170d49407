"""Random combinations of a strategy with everything beside it, each held to one process: a hunt for disagreements.

`python benchmarks/questions/strategy_hunt.py --seed 1 --cases 12 --ranks 2`: strategy x accumulation x recompute x
compile x optimizer x loss x model, with active clipping, uneven documents and a vocabulary that no number of ranks
divides. Ends with 1 where one disagrees.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.parallel.strategy_parity import Found, require_same, trained

MODELS = ("gpt2", "llama", "qwen", "nano", "mixture")
WITHIN_TENSOR_GROUPS = ("gpt2", "llama", "qwen", "nano")  # mixtures are refused there
COMPILED = {"never": ("none",), "always": ("blocks", "whole"), "drawn": ("none", "none", "none", "blocks", "whole")}
TENSOR_SIZES = {2: {"tensor": (2,), "fsdp_tensor": (2,)}, 4: {"tensor": (2, 4), "fsdp_tensor": (2,)}}
SEQUENCES_PER_STEP = 8


def drawn(chance: random.Random, *, num_ranks: int, compiled: Sequence[str]) -> dict[str, Any]:
    """Draw one combination; in a tensor group without compilation and mixtures, which are refused there."""
    strategy = chance.choice(("ddp", "fsdp", "hsdp", "tensor", "fsdp_tensor"))
    settings, model, copies = {}, chance.choice(MODELS), num_ranks
    compilation = chance.choice(compiled)
    if sizes := TENSOR_SIZES[num_ranks].get(strategy):
        settings["tensor_size"] = chance.choice(sizes)
        compilation = "none"
        model, copies = chance.choice(WITHIN_TENSOR_GROUPS), num_ranks // settings["tensor_size"]
        if model != "gpt2" and settings["tensor_size"] == 4:
            model = chance.choice(("gpt2", "qwen"))  # four heads of keys
    if strategy == "hsdp":
        settings["shard_size"] = chance.choice([size for size in (1, 2, 4) if size <= num_ranks])
    if strategy in ("fsdp", "hsdp", "fsdp_tensor"):
        settings["reshard_after_forward"] = chance.random() < 0.5
    of_rank = SEQUENCES_PER_STEP // copies
    return {
        "strategy": strategy,
        "settings": settings,
        "model": model,
        "micro_batch_sequences": chance.choice([size for size in (1, 2, 4, 8) if of_rank % size == 0]),
        "recompute": chance.choice((False, True, "selective")),
        "compile": compilation,
        "optimizer": chance.choice(("adamw", "muon")),
        "loss": chance.choice(("plain", "chunked")),
    }


def alone(case: dict[str, Any]) -> dict[str, Any]:
    """Return the case of one process that says the same: a whole step at once, plainly.

    A mixture balances the experts of each micro-batch: it keeps the size of those.
    """
    whole = {} if case["model"] == "mixture" else {"micro_batch_sequences": SEQUENCES_PER_STEP}
    return {**case, **whole, "strategy": "single", "settings": {}, "recompute": False, "compile": "none"}


def disagreement(found: Found, expected: Found) -> str | None:
    """Return the first difference beyond the rounding of fp32, None where there is none."""
    try:
        require_same(found, expected)
    except AssertionError as problem:
        return " ".join(str(problem).split())
    return None


def main(words: list[str]) -> int:
    """Draw, train and compare; print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2)
    parser.add_argument("--compile", choices=("drawn", "never", "always"), default="drawn")
    asked = parser.parse_args(words)
    chance = random.Random(asked.seed)
    cases = [drawn(chance, num_ranks=asked.ranks, compiled=COMPILED[asked.compile]) for _ in range(asked.cases)]
    with tempfile.TemporaryDirectory() as folder:
        expected = trained(Path(folder), [alone(case) for case in cases])
        found = trained(Path(folder), cases, num_ranks=asked.ranks)
    problems = [disagreement(*pair) for pair in zip(found, expected, strict=True)]
    for case, problem in zip(cases, problems, strict=True):
        print(f"{'DIFFERS' if problem else 'same   '} {json.dumps(case)}{f': {problem}' if problem else ''}")
    print(f"{len(cases)} cases on {asked.ranks} ranks, {sum(map(bool, problems))} differ")
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
