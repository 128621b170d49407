from lmtrain.serving.metrics import Histogram, ServerMetrics


def test_buckets_hold_those_below_them_too():
    one = Histogram()
    for seconds in (0.001, 0.2, 99.0):
        one.add(seconds)
    lines = one.lines("x")
    assert lines[0] == 'x_bucket{le="0.001"} 1'
    assert 'x_bucket{le="0.25"} 2' in lines
    assert lines[-3:] == ['x_bucket{le="+Inf"} 3', "x_sum 99.201", "x_count 3"]


def test_a_page_names_what_each_figure_is():
    metrics = ServerMetrics()
    metrics.new_tokens = 7
    metrics.requests[200] += 2
    lines = metrics.page({"texts_running": ("Texts that are written", 3)}).splitlines()
    for line in ("lmtrain_new_tokens_total 7", 'lmtrain_requests_total{status="200"} 2', "lmtrain_texts_running 3"):
        assert line in lines
    assert len([line for line in lines if line.startswith("# TYPE")]) == 7
