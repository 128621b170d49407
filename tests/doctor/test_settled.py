from lmtrain.accounting.observed.agreement import MOST_TRIES
from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.doctor.settled import measure_until_two_agree


def measured(*rates):
    """Return a measurement that gives these rates, one after the other, and the number of its calls."""
    calls = []

    def measure():
        calls.append(rates[len(calls)])
        return MeasuredDevice(
            kind="cpu", name="x", matmul_flops={"fp32": calls[-1], "bf16": 7.0}, copy_bytes_per_second=3.0
        )

    return measure, calls


def test_two_results_that_agree_end_the_measuring_at_the_better_one():
    measure, calls = measured(100.0, 97.0, 1.0)
    settled = measure_until_two_agree(measure)
    assert calls == [100.0, 97.0]
    assert settled.device.matmul_flops == {"fp32": 100.0, "bf16": 7.0}
    assert settled.device.copy_bytes_per_second == 3.0
    assert (settled.finding.state, settled.device.doubt) == ("ok", "")
    assert settled.finding.found == "2 tries, the last two within 3.0%"


def test_a_slow_first_result_is_measured_again():
    measure, calls = measured(50.0, 100.0, 96.0)
    settled = measure_until_two_agree(measure)
    assert (len(calls), settled.device.matmul_flops["fp32"], settled.finding.state) == (3, 100.0, "ok")


def test_a_machine_that_never_agrees_is_called_busy_after_five_tries():
    measure, calls = measured(100.0, 50.0, 90.0, 40.0, 80.0, 80.0)
    settled = measure_until_two_agree(measure)
    assert len(calls) == MOST_TRIES
    assert settled.device.matmul_flops["fp32"] == 100.0
    assert settled.finding.state == "warn"
    assert settled.finding.found == "the machine is busy: 5 tries, the last two differ by 50.0%"
    assert settled.finding.fix
    assert settled.device.doubt == settled.finding.found
