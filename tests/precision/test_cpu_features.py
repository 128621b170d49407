import subprocess
import sys

from lmtrain.precision import cpu_features
from lmtrain.precision.cpu_features import cpu_flags, cpu_name


def test_it_is_read_without_torch():
    code = "import sys, lmtrain.precision.cpu_features; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_flags_are_read_from_the_first_processor(monkeypatch):
    cpuinfo = "processor\t: 0\nflags\t\t: fpu avx512_bf16\nbugs\t: x\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    monkeypatch.setattr(cpu_features.Path, "read_text", lambda path: cpuinfo)
    assert cpu_flags() == {"fpu", "avx512_bf16"}


def test_a_machine_without_proc_has_no_known_flags(monkeypatch):
    def absent(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(cpu_features.Path, "read_text", absent)
    assert cpu_flags() == set()


def test_the_processor_has_a_name():
    assert cpu_name()
