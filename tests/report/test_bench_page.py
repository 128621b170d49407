from dataclasses import replace

from lmtrain.accounting.observed.step_changes import Change, ChangeOutcome
from lmtrain.accounting.observed.step_parts import Peaks
from lmtrain.report.bench_page import BOTTLENECKS, page
from lmtrain.report.show import plain_text
from tests.accounting.observed.test_step_parts import BENCH

HELPS = ChangeOutcome(change=Change(words=("precision=auto",), why="products in bf16"), saved=0.5)
USELESS = ChangeOutcome(change=Change(words=("attention=auto",), why="the fastest"), saved=0.0)
UNTRIED = ChangeOutcome(change=Change(words=("compile=auto",), why="compiles once"), saved=None)


def text(*outcomes: ChangeOutcome, bench=BENCH) -> str:
    return plain_text(page(bench, outcomes, title="llama_tiny"))


def test_the_page_has_every_figure_of_the_ruler_and_the_parts():
    shown = text()
    for words in (
        "110.0 ms (100.0 to 120.0), median of 3 rounds, 40 steps",
        "10,000",
        "20.0% palm, 10.0% causal of a table",
        "20.0% of 0.05 TFLOP/s, measured here",
        "1.00 GB",
        "0.1 a step",
        "2s, of which 1.5s the step itself",
        "60.00 ms  54.5%",
    ):
        assert words in shown
    assert "Bottleneck: compute: forward and backward" in shown


def test_a_single_step_has_no_rounds_to_speak_of():
    assert "110.0 ms, 1 step" in text(bench=replace(BENCH, step_seconds=(0.11,), num_steps=1))


def test_what_helps_comes_first_and_what_was_tried_in_vain_last():
    shown = text(USELESS, UNTRIED, HELPS)
    lines = [
        "What would help",
        "precision=auto: 100% faster",
        "compile=auto: compiles once",
        "with --try",
        "without gain",
    ]
    assert sorted(lines, key=shown.index) == lines
    assert "nothing that is known here" in text(USELESS)


def test_a_busy_machine_is_told_beside_the_rate_of_products():
    busy = replace(BENCH, peaks=replace(BENCH.peaks, busy="; the machine is busy"))
    assert "measured here; the machine is busy" in text(bench=busy)


def test_every_bottleneck_has_its_words():
    assert set(BOTTLENECKS) == {"data", "host", "optimizer", "compute", "compute at its limit"}


def test_what_is_not_known_is_said_and_an_uneven_machine_too():
    unknown = replace(BENCH, peaks=Peaks(flops=None, source="unknown device", matmul=None), syncs_per_step=None)
    shown = text(bench=replace(unknown, step_seconds=(0.1, 0.2, 0.3)))
    for words in ("unknown device", "not measured", "not counted", "other work had this machine"):
        assert words in shown
    assert "other work" not in text()


def test_parts_that_take_as_long_as_the_step_leave_nothing_to_show_for_the_loop():
    parts = replace(BENCH.parts, whole=BENCH.parts.forward)
    assert "callbacks and the loop" in text()
    assert "less than can be told apart" in text(bench=replace(BENCH, parts=parts))
    assert "less than can be told apart" not in text(bench=replace(BENCH, parts=replace(parts, whole=9.0)))
