import pytest

from lmtrain.training.trace_summary import Activity, TraceSummary, own_seconds, summarize


def event(name, start, end, **facts):
    return Activity(name=name, span=(start, end), **facts)


def test_own_time_is_without_the_called_on_the_same_thread():
    events = [event("a", 0, 10), event("b", 1, 4), event("c", 2, 3), event("b", 5, 6), event("d", 0, 9, thread=1)]
    assert own_seconds(events) == [("a", 6), ("b", 2), ("c", 1), ("b", 1), ("d", 9)]


def test_every_moment_on_a_cpu_is_of_one_kind():
    events = [
        event("ProfilerStep#3", 0, 1, is_annotation=True),
        event("aten::mm", 0.1, 0.3),
        event("aten::add", 0.3005, 0.5),  # 0.5 ms of Python before it
        event("gloo:all_reduce", 0.4, 0.6, is_annotation=True, thread=2),
    ]
    found = summarize(events, rank=0, last_step=3, num_steps=1)
    shares = (found.computing, found.communication, found.cpu_overhead, found.idle)
    assert shares == pytest.approx((0.3995, 0.1, 0.0005, 0.5))
    assert [(gap.after, gap.before) for gap in found.gaps] == [("aten::mm", "aten::add")]
    assert TraceSummary.from_json(found.to_json()) == found


def test_a_gpu_without_work_waits_for_the_host_or_for_nothing():
    gpu = {"is_on_gpu": True}
    events = [
        event("ProfilerStep#3", 0, 1, is_annotation=True),
        event("ProfilerStep#3", 0, 1, is_annotation=True, **gpu),
        event("aten::mm", 0.1, 0.4),
        event("gemm", 0.2, 0.5, **gpu),
        event("ncclDevKernel_AllReduce", 0.45, 0.7, **gpu),
    ]
    found = summarize(events, rank=1, last_step=3, num_steps=1)
    shares = (found.computing, found.communication, found.cpu_overhead, found.idle)
    assert shares == pytest.approx((0.3, 0.2, 0.1, 0.4))
    assert [each.name for each in found.kernels] == ["gemm", "ncclDevKernel_AllReduce"]
    assert [each.name for each in found.operators] == ["aten::mm"]
