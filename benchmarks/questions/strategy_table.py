"""Every strategy beside one process: `python benchmarks/questions/strategy_table.py` writes the table into its page.

Tiny models on forked ranks over gloo, with clipping that acts, uneven documents and a vocabulary that no number of
ranks divides; collectives are counted as torch's operators send them.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmtrain.accounting.options.strategy import Collective, ModelSpread, Stream
from lmtrain.parallel.context import context_facts
from lmtrain.parallel.diloco import diloco_facts
from lmtrain.parallel.fsdp import fsdp_facts
from lmtrain.parallel.fsdp_tensor import fsdp_tensor_facts
from lmtrain.parallel.hsdp import hsdp_facts
from lmtrain.parallel.replicate import ddp_facts
from lmtrain.parallel.tensor import tensor_facts
from tests.parallel.sent import Message
from tests.parallel.strategy_parity import (
    RELATIVE,
    TRAIL,
    Found,
    along_the_trail,
    losses_along,
    require_same,
    require_same_end,
    trained,
)

PAGE = Path(__file__).parents[2] / "docs/parallelism.md"
TRAIL_BEGIN = "<!-- one run through all strategies -->\n"
BEGIN, END = "<!-- strategies beside one process -->\n", "<!-- end -->\n"
SEQUENCES, CONTEXT, WIDTH, LAYERS, MICRO_STEPS = 8, 16, 16, 2, 2
ATTENTION_WIDTH = 16 + 2 * 8 + 16  # of queries, keys, values and mixed values
SCALAR_BYTES = 16  # sums of losses and norms, which no plan counts
CASE = {"model": "llama", "optimizer": "adamw", "loss": "plain"}
FACTS = {
    "ddp": ddp_facts,
    "fsdp": fsdp_facts,
    "hsdp": hsdp_facts,
    "tensor": tensor_facts,
    "fsdp_tensor": fsdp_tensor_facts,
    "context": context_facts,
    "diloco": diloco_facts,
}
KEPT = {"reshard_after_forward": False}
EVERY_STEP = {"every_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
# Workers apart are one process for plain updates alone, with a mean at every step.
OWN: dict[str, dict[str, Any]] = {"diloco": {"optimizer": "sgd", "clips": False, "packs": False}}
ROWS: dict[int, list[tuple[str, dict[str, Any]]]] = {
    2: [("ddp", {}), ("fsdp", KEPT), ("tensor", {"tensor_size": 2}), ("diloco", EVERY_STEP)],
    4: [
        ("ddp", {}),
        ("fsdp", KEPT),
        ("hsdp", {"shard_size": 2, **KEPT}),
        ("tensor", {"tensor_size": 2}),
        ("fsdp_tensor", {"tensor_size": 2, **KEPT}),
        ("context", {"context_size": 2, **KEPT}),
        ("diloco", EVERY_STEP),
    ],
}
OPTIMIZERS = {"adamw": "adamw", "muon": "muon in fp32", "muon_bf16": "muon in bf16"}
LAST_BITS = "muon in bf16, one process, other last bits"
OF_WORKERS = "; gradients are each worker's own"
HEADER = (
    "| strategy | ranks | largest difference of a loss | gradients, weights | reductions of a gradient a step "
    "| bytes a step: counted / planned | goes on in one process |\n|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Train every row, and put the table in its place."""
    with tempfile.TemporaryDirectory() as name:
        rows = list(table(Path(name)))
        trail = list(trail_table(Path(name)))
    replace_table(BEGIN, [HEADER, *rows])
    replace_table(TRAIL_BEGIN, trail)
    return 0


def replace_table(begin: str, lines: list[str]) -> None:
    """Put lines between a mark of the page and the next end."""
    head, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{head}{begin}" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


def trail_table(folder: Path) -> Iterator[str]:
    """Give the losses of one run that changes its strategy after each step, beside those of one process.

    Muon's products in bf16 amplify the last bits of gradients: one process with other last bits stands beside them.
    """
    cases = [{**CASE, "optimizer": optimizer} for optimizer in OPTIMIZERS]
    straight = [{**one, "strategy": "single", "micro_batch_sequences": SEQUENCES, "steps": len(TRAIL)} for one in cases]
    *expected, shaken = trained(folder, [*straight, {**straight[-1], "last_bits": 1}])
    runs = along_the_trail(folder, cases)
    for legs, wanted in zip(runs[:-1], expected[:-1], strict=True):
        require_same_end(legs[-1], wanted)
    columns = [
        *(losses_apart(losses_along(legs), one) for legs, one in zip(runs, expected, strict=True)),
        losses_apart(shaken["losses"], expected[-1]),
    ]
    heads = [*OPTIMIZERS.values(), LAST_BITS]
    yield f"| step | goes on as | ranks | {' | '.join(heads)} |"
    yield f"|{'---|' * (3 + len(heads))}"
    for number, (strategy, _, num_ranks) in enumerate(TRAIL, start=1):
        cells = [f"{column[number]:.0e}" for column in columns]
        yield f"| {number} | `{strategy}` | {num_ranks} | {' | '.join(cells)} |"


def losses_apart(losses: dict[int, float], expected: Found) -> dict[int, float]:
    """Return the relative difference of each step's loss."""
    return {step: abs(loss / expected["losses"][step] - 1) for step, loss in losses.items()}


def table(folder: Path) -> Iterator[str]:
    """Give the rows of all strategies."""
    alone = {**CASE, "strategy": "single", "micro_batch_sequences": SEQUENCES}
    (expected,) = trained(folder, [alone])
    own = dict(zip(OWN, trained(folder, [alone | changes for changes in OWN.values()]), strict=True))
    for num_ranks, rows in ROWS.items():
        cases = [case_of(name, settings, num_ranks) for name, settings in rows]
        found = trained(folder, cases, num_ranks=num_ranks)
        again = [
            {**one, "strategy": "single", "settings": {}, "micro_batch_sequences": 2}
            | {"save_to": None, "resume": one["save_to"]}
            for one in cases
        ]
        resumed = trained(folder, again)
        for (name, settings), one, later in zip(rows, found, resumed, strict=True):
            spread = FACTS[name](**settings)
            yield row(name, num_ranks, spread, one, later, own.get(name, expected))


def case_of(name: str, settings: dict[str, Any], num_ranks: int) -> dict[str, Any]:
    """Return a training of two micro-steps that saves after its first step."""
    together = settings.get("tensor_size", 1) * settings.get("context_size", 1)
    micro = SEQUENCES // (num_ranks // together) // MICRO_STEPS
    own = {"strategy": name, "settings": settings, "micro_batch_sequences": micro, "save_to": f"{name}{num_ranks}"}
    return {**CASE, **own, **OWN.get(name, {})}


def row(name: str, num_ranks: int, spread: ModelSpread, found: Found, resumed: Found, expected: Found) -> str:
    """Return one line of the table."""
    num = sum(weight.numel() for weight in expected["weights"].values())
    num_tokens = SEQUENCES * spread.tensor_ranks * spread.context_ranks // num_ranks // MICRO_STEPS * CONTEXT
    stream = Stream(
        num_tokens=num_tokens,
        num_bytes=num_tokens * WIDTH * 4,
        num_layers=LAYERS,
        attention_bytes=num_tokens * LAYERS * ATTENTION_WIDTH * 4,
    )
    planned = list(
        spread.collectives(
            num_ranks=num_ranks, gathered=4.0 * num, num_gradients=num, micro_steps=MICRO_STEPS, stream=stream
        )
    )
    messages = [each for each in found["sent"][-1] if each.num_bytes > SCALAR_BYTES]
    cells = [
        f"`{name}`",
        str(num_ranks),
        f"{largest(found, expected):.0e}",
        f"{'equal' if is_same(found, expected, gradients=name not in OWN) else '**differ**'}"
        f"{OF_WORKERS * (name in OWN)}",
        reductions(planned, messages),
        "; ".join(of_group(one, messages) for one in planned),
        "equal" if largest(resumed, expected) <= RELATIVE else "**differs**",
    ]
    return f"| {' | '.join(cells)} |"


def is_same(found: Found, expected: Found, *, gradients: bool = True) -> bool:
    """Tell whether losses, `gradients` and weights are those of one process, as the tests hold them."""
    try:
        (require_same if gradients else require_same_end)(found, expected)
    except AssertionError:
        return False
    return True


def largest(found: Found, expected: Found) -> float:
    """Return the largest relative difference of a step's loss."""
    return max(losses_apart(found["losses"], expected).values())


def reductions(planned: list[Collective], messages: list[Message]) -> str:
    """Return how often a gradient is reduced, by bytes: those counted over those of one reduction."""
    once = {(one.num_ranks, one.stride): one.reduced_bytes for one in planned if one.reduced_bytes}
    counted = sum(each.sent for each in messages if each.kind != "gather" and (each.num_ranks, each.stride) in once)
    return f"{counted / sum(once.values()):.2f}" if once else "- (no copies)"


def of_group(planned: Collective, messages: list[Message]) -> str:
    """Return the bytes of a group, counted and planned."""
    counted = sum(
        each.sent for each in messages if (each.num_ranks, each.stride) == (planned.num_ranks, planned.stride)
    )
    return f"{planned.group} of {planned.num_ranks}: {counted:,.0f} / {planned.num_bytes:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
