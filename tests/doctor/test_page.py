import io

from rich.console import Console

from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.doctor.finding import Finding
from lmtrain.doctor.page import measured_line, page, verdict

GOOD = Finding(name="disk", state="ok", found="large")
WARNING = Finding(name="files", state="warn", found="few", fix="raise it")
BAD = Finding(name="MLflow", state="bad", found="silent", fix="start it")


def test_the_verdict_counts_what_is_not_well():
    assert verdict([GOOD]) == "ready"
    assert verdict([GOOD, WARNING]) == "ready, 1 worth knowing"
    assert verdict([GOOD, WARNING, BAD]) == "not ready: 1 in the way, 1 worth knowing"


def test_a_fix_stands_below_its_finding():
    device = MeasuredDevice(kind="cpu", name="EPYC", threads=2, matmul_flops={"fp32": 1.5e11})
    file = io.StringIO()
    Console(file=file, width=100).print(page([GOOD, WARNING], device))
    lines = file.getvalue().splitlines()
    assert "-> raise it" in lines[2]
    assert "measured: EPYC on 2 threads: 0.15 TFLOP/s in fp32" in file.getvalue()


def test_a_gpu_has_no_threads():
    assert measured_line(MeasuredDevice(kind="gpu", name="H100", copy_bytes_per_second=3e12)).endswith("3e+03 GB/s")
