"""Random combinations of a strategy with everything beside it, each held to one process: a hunt for disagreements.

`python benchmarks/questions/strategy_hunt.py --seed 1 --cases 12 --ranks 2`: strategy x accumulation x recompute x
compile x optimizer x loss x model, with active clipping, uneven documents and a vocabulary that no number of ranks
divides; `--all` takes every combination of one model in place of draws. Ends with 1 where one disagrees.
A start of ranks has FORKED_MAX_SECONDS (280) seconds.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tests.parallel.strategy_parity import Found, require_same, trained

MODELS = ("gpt2", "llama", "qwen", "nano", "mixture")
WITHIN_TENSOR_GROUPS = ("gpt2", "llama", "qwen", "nano")  # mixtures are refused there
COMPILED = {"never": ("none",), "always": ("blocks", "whole"), "drawn": ("none", "none", "none", "blocks", "whole")}
TENSOR_SIZES = {2: {"tensor": (2,), "fsdp_tensor": (2,)}, 4: {"tensor": (2, 4), "fsdp_tensor": (2,)}}
CONTEXT = {"context_size": 2}
SEQUENCES_PER_STEP = 8
CASES_AT_ONCE = {True: 3, False: 24}  # compiled or not: a start of ranks has a time limit


def drawn(chance: random.Random, *, num_ranks: int, compiled: Sequence[str]) -> dict[str, Any]:
    """Draw one combination; in a tensor group without mixtures, which are refused there."""
    strategy = chance.choice(("ddp", "fsdp", "hsdp", "tensor", "fsdp_tensor", "context"))
    settings, model, copies = {}, chance.choice(MODELS), num_ranks
    compilation = chance.choice(compiled)
    if sizes := TENSOR_SIZES[num_ranks].get(strategy):
        settings["tensor_size"] = chance.choice(sizes)
        model, copies = chance.choice(WITHIN_TENSOR_GROUPS), num_ranks // settings["tensor_size"]
        if model != "gpt2" and settings["tensor_size"] == 4:
            model = chance.choice(("gpt2", "qwen"))  # four heads of keys
    if strategy == "context":
        settings, copies = {**CONTEXT}, num_ranks // 2
    if strategy == "hsdp":
        settings["shard_size"] = chance.choice([size for size in (1, 2, 4) if size <= num_ranks])
    if strategy in ("fsdp", "hsdp", "fsdp_tensor", "context"):
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


def every(*, num_ranks: int, compiled: Sequence[str], model: str) -> list[dict[str, Any]]:
    """Give all combinations of one model."""
    spreads: list[tuple[str, dict[str, Any]]] = [
        ("ddp", {}),
        ("fsdp", {}),
        ("hsdp", {"shard_size": 2}),
        ("context", CONTEXT),
    ]
    groups = [(name, {"tensor_size": sizes[0]}) for name, sizes in TENSOR_SIZES[num_ranks].items()]
    cases: list[dict[str, Any]] = []
    for strategy, settings in [*spreads, *groups]:
        together = settings.get("tensor_size", 1) * settings.get("context_size", 1)
        of_rank = SEQUENCES_PER_STEP * together // num_ranks
        choices = product(
            sorted({of_rank, of_rank // 2}),
            (False, True, "selective"),
            compiled,
            ("adamw", "muon"),
            ("plain", "chunked"),
        )
        names = ("micro_batch_sequences", "recompute", "compile", "optimizer", "loss")
        one = {"strategy": strategy, "settings": settings, "model": model}
        cases += [one | dict(zip(names, choice, strict=True)) for choice in choices]
    return cases


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


def compared(cases: Sequence[dict[str, Any]], *, num_ranks: int) -> list[str | None]:
    """Train each case on the ranks, and each different one of one process once; return the disagreements."""
    keys = [json.dumps(alone(case), sort_keys=True) for case in cases]
    problems: list[str | None] = []
    with tempfile.TemporaryDirectory() as folder:
        distinct = list(dict.fromkeys(keys))
        expected = dict(zip(distinct, trained(Path(folder), list(map(json.loads, distinct))), strict=True))
        at_once = CASES_AT_ONCE[any(case["compile"] != "none" for case in cases)]
        for first in range(0, len(cases), at_once):
            part = slice(first, first + at_once)
            found = trained(Path(folder), cases[part], num_ranks=num_ranks)
            problems += [disagreement(one, expected[key]) for one, key in zip(found, keys[part], strict=True)]
    return problems


def main(words: list[str]) -> int:
    """Draw, train and compare; print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2)
    parser.add_argument("--all", choices=MODELS, help="every combination of this model")
    parser.add_argument("--compile", choices=("drawn", "never", "always"), default="drawn")
    asked = parser.parse_args(words)
    chance = random.Random(asked.seed)
    compiled = tuple(dict.fromkeys(COMPILED[asked.compile]))
    if asked.all:
        cases = every(num_ranks=asked.ranks, compiled=compiled, model=asked.all)
    else:
        cases = [drawn(chance, num_ranks=asked.ranks, compiled=COMPILED[asked.compile]) for _ in range(asked.cases)]
    problems = compared(cases, num_ranks=asked.ranks)
    for case, problem in zip(cases, problems, strict=True):
        print(f"{'DIFFERS' if problem else 'same   '} {json.dumps(case)}{f': {problem}' if problem else ''}")
    print(f"{len(cases)} cases on {asked.ranks} ranks, {sum(map(bool, problems))} differ")
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
