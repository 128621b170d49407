import shutil
import sysconfig

import pytest

from lmtrain.models import triton_kernels
from lmtrain.models.triton_kernels import can_launch


@pytest.fixture(autouse=True)
def _all_there(monkeypatch, tmp_path):
    (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", {"gcc": "/usr/bin/gcc"}.get)
    monkeypatch.setattr(sysconfig, "get_path", {"include": tmp_path}.get)
    monkeypatch.setattr(triton_kernels, "find_spec", lambda _: object())


def test_triton_with_a_compiler_and_python_s_headers_launches(monkeypatch):
    assert can_launch()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert not can_launch()
    monkeypatch.setattr(shutil, "which", {"gcc": "/usr/bin/gcc", "icx": "/opt/icx"}.get)
    monkeypatch.setenv("CC", "icx")
    assert can_launch()
    monkeypatch.setenv("CC", "removed")  # Triton takes it all the same
    assert not can_launch()


def test_without_the_headers_or_triton_it_does_not(monkeypatch, tmp_path):
    monkeypatch.setattr(triton_kernels, "find_spec", lambda _: None)
    assert not can_launch()
    monkeypatch.undo()
    monkeypatch.setattr(sysconfig, "get_path", {"include": tmp_path / "none"}.get)
    assert not can_launch()
