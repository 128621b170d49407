"""Train a tiny model on documents of unequal length, padded, and print one JSON line of losses and a weight's sum.

Run by test_uneven_documents.py. Arguments: packing (document, best_fit), micro-batch sequences, steps, strategy
(single, ddp, fsdp).
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.data.packing import BestFit, OneDocument, Packing
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.parallel.mesh import mesh
from lmtrain.parallel.replicate import ddp, single
from lmtrain.parallel.strategy import Parallelism
from lmtrain.precision.policy import fp32
from lmtrain.training.datamodule import TokenDataModule
from tests.data.documents import make_dataset
from tests.parity.plain_python import fit

CONTEXT_TOKENS = 32
SEQUENCES_PER_STEP = 8
LENGTHS = [3, 30, 7, 45, 2, 19, 31, 4, 12, 5, 28, 9, 33, 2, 16, 40] * 3
PACKINGS: dict[str, Packing] = {"document": OneDocument(), "best_fit": BestFit(document_mask=True)}


def train(packing: str, micro_batch_sequences: int, steps: int, strategy: str, folder: Path) -> list[float]:
    """Return the loss and gradient norm of every step, as seen by all ranks together."""
    outer = outer_launcher(os.environ)
    join(outer)
    num_ranks = outer.world_size if outer else 1
    batch = plan_batches(
        Batch(
            context_tokens=CONTEXT_TOKENS,
            tokens_per_step=CONTEXT_TOKENS * SEQUENCES_PER_STEP,
            micro_batch_sequences=micro_batch_sequences,
        ),
        num_ranks=num_ranks,
    )
    strategies: dict[str, Callable[[], Parallelism]] = {
        "single": partial(single, num_ranks=num_ranks),
        "ddp": partial(ddp, num_ranks=num_ranks),
        "fsdp": partial(mesh, option="fsdp", num_ranks=num_ranks, compute_dtype=torch.float32),
    }
    parallelism = strategies[strategy]()
    data = make_dataset(folder / "data", LENGTHS, num_ids=500).folder
    datamodule = TokenDataModule(folder=data, batch=batch, seed=7, packing=PACKINGS[packing])
    module = fit(parallelism, batch, datamodule, steps=steps, folder=folder, precision=fp32())
    return [number for record in module.step_metrics.drain() for number in (record.loss, record.gradient_norm)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with TemporaryDirectory() as temporary:
        numbers = train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(temporary))
    if os.environ.get("RANK", "0") == "0":  # two ranks' lines can run into one another
        print(json.dumps(numbers), flush=True)
