from contextlib import ExitStack

import pytest

from lmtrain.tracking.stopwatch import Stopwatch
from lmtrain.training.time_profiler import TimeProfiler


def test_actions_of_the_trainer_go_to_their_kinds(let_pass):
    watch = Stopwatch()
    profiler = TimeProfiler(watch)
    with profiler.profile("run_training_epoch"):
        assert watch.kind == "host_overhead"
        with profiler.profile("[StepLoop].train_dataloader_next"):
            assert watch.kind == "data_wait"
        with profiler.profile("run_training_batch"), profiler.profile("[Strategy]DDP.training_step"):
            assert watch.kind == "compute"
        with profiler.profile("[Callback]StepLog.on_train_batch_end"):
            assert watch.kind == "logging"
            with watch.spending("checkpoint"):
                let_pass(10)
        assert watch.kind == "host_overhead"
    assert watch.kind == "host_overhead", "what follows the training is no set-up"
    assert watch.seconds()["checkpoint"] == pytest.approx(10, abs=0.1)


def test_what_begins_in_a_callback_and_outlasts_it_goes_on(let_pass):
    """As the first step, which compiles: it begins before the batch and ends after it, in another callback."""
    watch = Stopwatch()
    profiler = TimeProfiler(watch)
    with profiler.profile("run_training_epoch"):
        with ExitStack() as first_step:
            with profiler.profile("[Callback]Throughput.on_train_batch_start"):
                first_step.enter_context(watch.spending("compile"))
            with profiler.profile("run_training_batch"):
                let_pass(20)
            with profiler.profile("[Callback]Throughput.on_train_batch_end"):
                first_step.close()
        assert watch.kind == "host_overhead"
        with profiler.profile("run_training_batch"):
            assert watch.kind == "compute"
    assert watch.seconds()["compile"] == pytest.approx(20, abs=0.1)
    assert watch.seconds()["compute"] < 0.1
