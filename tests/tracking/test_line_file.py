import errno

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import LineFile
from tests.full_disk import full_disk


def test_a_full_disk_leaves_no_half_line_and_loses_none(tmp_path):
    file = LineFile(tmp_path / "a", "b.jsonl")
    assert file.append(["1\n"]) is None
    with full_disk(room_bytes=3):
        problem = file.append(["22\n", "33\n"])
        assert problem is not None
        assert problem.errno == errno.ENOSPC
        assert file.path.read_text() == "1\n"
        assert file.num_waiting == 2
    assert file.append(["44\n"]) is None
    assert (file.path.read_text(), file.num_waiting) == ("1\n22\n33\n44\n", 0)


def test_a_broken_disk_is_no_full_one(tmp_path):
    file = LineFile(tmp_path, "b.jsonl")
    with full_disk(number=errno.EIO), pytest.raises(EnvironmentProblem, match="cannot be written"):
        file.append(["1\n"])
