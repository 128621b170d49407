from pathlib import Path

import pytest

from lmtrain.run.planning.free_memory import available_bytes


def test_caches_that_the_kernel_gives_back_are_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemFree: 2 kB\nMemAvailable:    5 kB\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 5 * 1024


@pytest.mark.parametrize(("limit", "free"), [("4000", 3000), ("max", 5 * 1024), ("99999", 5 * 1024)])
def test_a_control_group_may_leave_less(limit: str, free: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 5 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == free


def test_a_system_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path) is None
