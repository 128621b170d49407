import json

from torch.profiler import _memory_profiler

from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.training.profilers import MemoryTrace
from lmtrain.training.trace_summary import MEMORY_KINDS


def test_parameters_and_gradients_are_found_to_the_byte(make_run):
    run = make_run(steps=3)
    trainer = run.fit(TokenBudget(context=run.context), MemoryTrace(wait_steps=1, context=run.context))
    row = json.loads((run.context.folder / "profile" / "memory_rank0.json").read_text())
    num_bytes = 4 * sum(one.numel() for one in trainer.model.parameters())
    assert (row["step"], row["device"]) == (2, "cpu")
    assert max(row["bytes_of"]["parameters"]) == num_bytes
    assert max(row["bytes_of"]["gradients"]) == num_bytes
    assert max(row["bytes_of"]["optimizer state"]) == 0, "plain SGD"
    assert sum(row["peak"].values()) == max(map(sum, zip(*row["bytes_of"].values(), strict=True)))
    assert 0 < row["seconds"][-1] < 60


def test_the_kinds_are_the_columns_of_torch():
    columns = {index: category for category, index in _memory_profiler._CATEGORY_TO_INDEX.items()}
    names = [getattr(columns[index], "name", "") for index in range(len(columns))]
    assert names == ["PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT",
                     "AUTOGRAD_DETAIL", ""]  # fmt: skip
    assert len(MEMORY_KINDS) == len(names)
