from collections.abc import Callable

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.callback_problems import unmasked
from lmtrain.run.execution.run import execute
from lmtrain.run.stored_runs.job import Job


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        ("OnExceptionCheckpoint, dirpath: x", "Trainer was configured with `enable_checkpointing=False`"),  # at once
        ("DeviceStatsMonitor", r"Cannot use `DeviceStatsMonitor` callback with `Trainer\(logger=False\)`"),  # masked
        ("ThroughputMonitor, batch_size_fn: null", "'NoneType' object is not callable"),  # in the run
    ],
)
def test_a_callback_of_lightnings_that_does_not_go_with_a_run_is_named(
    tiny_job: Callable[..., Job], callback: str, said: str
) -> None:
    node = f"+callbacks.theirs={{_target_: lightning.pytorch.callbacks.{callback}}}"
    name = callback.partition(",")[0]
    with pytest.raises(
        ConfigurationError,
        match=rf"^callbacks\.theirs\._target_=lightning\.pytorch\.callbacks\.{name} does not go with this run: {said}",
    ):
        execute(tiny_job("budget.steps=1", node))


def fail_in_teardown() -> None:
    try:
        raise ConfigurationError("first")
    finally:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def test_the_failure_before_a_teardowns_own_is_raised() -> None:
    with pytest.raises(ConfigurationError, match="first"), unmasked():
        fail_in_teardown()
    with pytest.raises(NotImplementedError, match="alone"), unmasked():
        raise NotImplementedError("alone")
