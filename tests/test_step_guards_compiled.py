"""What a compiled step launches, allocates and compiles, counted in the real Trainer.

Kernels are counted and not made: a C++ compiler would take 55 of the 70 seconds of a processor for 44 kernels.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from lmtrain.precision import cpu_products
from lmtrain.training.intervals import is_step_end
from tests.counted_kernels import LAUNCHES, counted_kernels
from tests.test_step_guards import STEPS, build, fit

# One block and two micro-steps, with torch 2.13: 48 kernels of the compiler's, 138 products (most of them Muon's), 516
# allocations. A tenth more is allowed.
MOST_KERNELS, MOST_PRODUCTS, MOST_ALLOCATIONS = 52, 151, 567
ALIKE = [4, 7]  # each the first step after a log point
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


class Counted(pl.Callback):
    """Counts what a step launched and allocated, and what was compiled by its end."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[int, Counter[str]] = {}
        self.kernels: dict[int, int] = {}
        self.allocations: dict[int, int] = {}
        self.num_graphs: dict[int, int] = {}
        self._profile: Any = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if not is_step_end(trainer, batch_idx):
            return
        step = trainer.global_step
        self.num_graphs[step] = counters["stats"]["unique_graphs"]
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            self._read(step)
        if step + 1 in ALIKE:
            LAUNCHES.clear()
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True).__enter__()

    def _read(self, step: int) -> None:
        events = self._profile.profiler.kineto_results.events()
        self.kernels[step] = LAUNCHES["kernel"]
        self.events[step] = Counter(event.name() for event in events)
        self.allocations[step] = sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events)
        self._profile = None


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    """A run of one block in two micro-steps, compiled whole."""
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("compiled"))
    patch.setattr(
        cpu_products, "is_mkl_slow", lambda: False
    )  # oneDNN's own scratch is allocated on some processors alone
    cpu_products.cpu_matmul_precision.cache_clear()
    found, words = Counted(), ["model.num_layers=1", "model.value_embedding_layers=[]", "batch.micro_batch_sequences=4"]
    counters.clear()
    with counted_kernels():
        fit(build(Path.cwd(), "compile=model", *words), found)
        yield found
    patch.undo()
    cpu_products.cpu_matmul_precision.cache_clear()


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_step_and_no_graph_breaks(counted):
    """Validation ran before the first step and between others, and texts were sampled."""
    assert len(counted.num_graphs) == STEPS
    assert set(counted.num_graphs.values()) == {2}, "one that trains and one that evaluates"
    assert not counters["graph_break"]


@pytest.mark.slow
def test_a_compiled_step_launches_no_more_kernels_than_it_did(counted):
    for step in ALIKE:
        assert 0 < counted.kernels[step] <= MOST_KERNELS
        assert 0 < sum(counted.events[step][name] for name in PRODUCTS) <= MOST_PRODUCTS


@pytest.mark.slow
def test_a_compiled_step_allocates_no_more_often_than_it_did_and_each_as_often(counted):
    first, second = (counted.allocations[step] for step in ALIKE)
    assert 0 < first <= MOST_ALLOCATIONS
    assert first == second
