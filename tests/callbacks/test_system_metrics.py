import threading
from types import SimpleNamespace

import pytest

from lmtrain.callbacks.system_metrics import SystemMetrics
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.node_load import load_logs
from lmtrain.tracking.run_log import read_points


def keys(folder):
    return {path.name: {key for point in read_points(path) for key in point.metrics} for path in load_logs(folder)}


def test_a_run_has_its_node_s_load_and_the_thread_ends_with_it(make_run):
    run = make_run(steps=2)
    run.fit(SystemMetrics(context=run.context), TokenBudget(context=run.context))
    (found,) = keys(run.context.folder).values()
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= found
    assert "node-load" not in [thread.name for thread in threading.enumerate()]


def test_the_first_rank_of_each_of_several_nodes_writes_a_series_of_its_own(make_run, monkeypatch):
    context = make_run(steps=1).context
    for node, local_rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        callback = SystemMetrics(context=context)
        callback.setup(SimpleNamespace(node_rank=node, num_nodes=2), None, "fit")  # pyright: ignore[reportArgumentType]
        callback.on_exception(None, None, RuntimeError())  # pyright: ignore[reportArgumentType]
    found = keys(context.folder)
    assert set(found) == {"node0.jsonl", "node1.jsonl"}
    assert all(key.startswith("system/node_1/") for key in found["node1.jsonl"])


def test_an_interval_of_nothing_is_refused(make_run):
    with pytest.raises(ConfigurationError, match=r"system_metrics\.every_seconds=0 is not above 0; nearest valid: 10"):
        SystemMetrics(every_seconds=0, context=make_run(steps=1).context)
