from lmtrain.training.profilers import none


def test_no_profiler_is_no_callback():
    assert none() is None
