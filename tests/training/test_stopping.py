import os
import signal

import pytest

from lmtrain.training.stopping import (
    SIGNALS,
    StoppedEarly,
    ended_by_signals,
    heard_signals,
    ignoring_interrupts,
    stopping_at_once,
)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    said = f"{number.name}: stopped before the first step"
    with pytest.raises(StoppedEarly, match=said) as stopped, stopping_at_once():
        os.kill(os.getpid(), number)
    assert stopped.value.number == number
    assert signal.getsignal(number) == before


def test_signals_are_heard_whoever_answers_them() -> None:
    before = signal.set_wakeup_fd(-1)
    with heard_signals() as heard:
        assert heard() == []
        with ignoring_interrupts(), pytest.raises(StoppedEarly), stopping_at_once():
            signal.raise_signal(signal.SIGUSR1)
        assert heard() == [signal.SIGUSR1]
    assert signal.set_wakeup_fd(before) == -1


def test_a_measurement_ends_in_a_line_with_the_signal_s_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert capsys.readouterr().err == "lmtrain: SIGTERM: stopped; nothing was to be kept\n"
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        os.kill(os.getpid(), signal.SIGINT)
