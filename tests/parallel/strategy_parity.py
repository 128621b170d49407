"""Train cases of tests/parallel/parity_run.py on forked ranks, and hold them to a single process.

Sums in fp32 are taken in another order when ranks share them: losses and norms equal to 2e-6 relative, gradients to
2e-6 of the largest entry of their tensor (a few units in the last place; 1e-8 where they are nearly zero), and weights
to 5e-6, a two-thousandth of one of their updates, in which small gradients with their roundings count like large ones.
"""

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests import forked, tiny

SCRIPT = Path(__file__).with_name("parity_run.py")
RELATIVE = 2e-6
OF_WEIGHTS = 5e-6
CLIP = 0.3  # below the norm of every step, so that clipping acts
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT)
Found = dict[str, Any]
# One run, a step under each: strategy, its settings, ranks. Every layout of a checkpoint goes on in the next.
TRAIL: Final[list[tuple[str, dict[str, Any], int]]] = [
    ("fsdp", {}, 2),
    ("single", {}, 1),
    ("ddp", {}, 4),
    ("tensor", {"tensor_size": 2}, 2),
    ("hsdp", {"shard_size": 2}, 4),
    ("fsdp_tensor", {"tensor_size": 2}, 4),
    ("fsdp", {}, 4),
    ("tensor", {"tensor_size": 2}, 4),
    ("context", {"context_size": 2}, 4),
    ("single", {}, 1),
]


def trained(folder: Path, cases: Sequence[Mapping[str, Any]], *, num_ranks: int = 1) -> list[Found]:
    """Train each case in turn on this number of ranks; return losses, norms, first gradients and last weights.

    A crash in a thread of gloo (torch 2.13, `pt_gloo_runloop`, once in some hundred starts) is given a second start.
    """
    words = [str(folder), json.dumps([dict(case) for case in cases])]
    start = partial(forked.run, SCRIPT, words, folder=folder, environment=tiny.environment(), num_ranks=num_ranks)
    ended = start()
    if num_ranks > 1 and ended.returncode in CRASHES:
        for case in cases:
            shutil.rmtree(folder / case.get("save_to", "nothing"), ignore_errors=True)
        ended = start()
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr[-3000:]}"
    return torch.load(folder / f"found{num_ranks}.pt", weights_only=False)


def along_the_trail(folder: Path, cases: Sequence[Mapping[str, Any]]) -> list[list[Found]]:
    """Train a run of each case, a step under each strategy of the trail and from the last one's checkpoint."""
    legs: list[list[Found]] = []
    for step, (strategy, settings, num_ranks) in enumerate(TRAIL, start=1):
        together = settings.get("tensor_size", 1) * settings.get("context_size", 1)
        sequences = 8 * together // num_ranks
        leg = {"strategy": strategy, "settings": settings, "micro_batch_sequences": max(1, sequences // 2)}
        leg |= {"steps": step, "save_at": step}
        each = [
            {**case, **leg, "save_to": f"leg{step}_{n}"} | ({"resume": f"leg{step - 1}_{n}"} if step > 1 else {})
            for n, case in enumerate(cases)
        ]
        legs.append(trained(folder, each, num_ranks=num_ranks))
    return [list(runs) for runs in zip(*legs, strict=True)]


def losses_along(legs: Sequence[Found]) -> dict[int, float]:
    """Return the loss of every step of one run's legs."""
    return {step: loss for leg in legs for step, loss in leg["losses"].items()}


def require_same(found: Found, expected: Found, *, relative: float = RELATIVE) -> None:
    """Hold one training to another: losses, norms, tokens, and every parameter's gradient and weight."""
    for kind in ("losses", "norms"):
        assert found[kind] == pytest.approx(expected[kind], rel=relative), kind
    assert found["tokens"] == expected["tokens"]
    require_same_end(found, expected)
    for name, tensor in found["gradients"].items():
        wanted = expected["gradients"][name]
        _require_close(tensor, wanted, atol=max(relative * wanted.abs().max().item(), 1e-8), name=f"gradient of {name}")


def require_same_end(found: Found, expected: Found, *, atol: float = OF_WEIGHTS) -> None:
    """Hold the last weights of one training to another's."""
    assert found["weights"].keys() == expected["weights"].keys()
    for name, tensor in found["weights"].items():
        _require_close(tensor, expected["weights"][name], atol=atol, name=name)


def _require_close(found: torch.Tensor, expected: torch.Tensor, *, atol: float, name: str) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol, msg=lambda message: f"{name}: {message}")
