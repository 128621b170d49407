import time

import pytest

from lmtrain.tracking.stopwatch import Preemption, Stopwatch


def write(folder, **waited):
    for name, seconds in waited.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"{10**9} {int(seconds * 1e9)} 7\n")


def test_waiting_is_taken_from_all_kinds_alike_and_the_sum_stays(let_pass, tmp_path):
    write(tmp_path, main=1.0, worker=5.0)
    watch = Stopwatch(began=time.monotonic() - 10)
    preemption = Preemption(watch, threads=tmp_path)
    watch.switch("compute")
    watch._seconds["compute"] += 8.0
    watch._seconds["logging"] += 2.0
    write(tmp_path, main=2.0, worker=10.0)
    before = watch.seconds()
    preemption.book()
    after = watch.seconds()
    assert after["preempted"] == pytest.approx(5.0, rel=1e-3), "of the thread that lost most"
    assert after["compute"] == pytest.approx(4.0, rel=1e-2)
    assert after["logging"] == pytest.approx(1.0, rel=1e-2)
    assert after["setup"] == pytest.approx(before["setup"], abs=0.01), "what was before does not count"
    assert sum(after.values()) == pytest.approx(sum(before.values()), abs=0.01)


def test_where_the_kernel_tells_nothing_nothing_is_booked(tmp_path):
    watch = Stopwatch()
    Preemption(watch, threads=tmp_path / "none").book()
    assert watch.seconds()["preempted"] == 0.0
