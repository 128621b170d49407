import signal
import threading
import weakref

import pytest

from lmtrain.inference.kept_interrupts import kept_interrupts


class Key:
    pass


@pytest.fixture(autouse=True)
def heard():
    """Let Ctrl-C raise as in a terminal; a shell's background commands ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_lost_in_a_callback_is_raised_at_the_end():
    keys, before = [Key()], signal.getsignal(signal.SIGINT)
    reference = weakref.ref(keys[0], lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), kept_interrupts():
        keys.clear()
    assert reference() is None
    assert signal.getsignal(signal.SIGINT) is before


def test_work_without_signals_and_another_thread_s_is_left_alone():
    before = signal.getsignal(signal.SIGINT)

    def work():
        with kept_interrupts():
            assert signal.getsignal(signal.SIGINT) is before

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with kept_interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
