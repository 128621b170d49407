import threading

from lmtrain.callbacks.system_metrics import SystemMetrics
from lmtrain.callbacks.token_budget import TokenBudget
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
