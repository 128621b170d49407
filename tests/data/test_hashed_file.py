import hashlib

import numpy as np
import pytest

from lmtrain.data.hashed_file import HashedFile, changed_files, require_whole
from lmtrain.storage.hashed_folder import file_sha256
from lmtrain.data.manifest import Shard

VALUES = np.arange(1000, dtype="<u2")


def test_the_digest_is_that_of_the_file_at_any_moment(tmp_path):
    file = HashedFile(tmp_path / "f")
    for values in (VALUES[:10], VALUES[10:10], VALUES[10:500:3], VALUES):
        file.write(values)
        file.sync()
        assert file.sha256 == file_sha256(tmp_path / "f")
    file.close()
    assert (tmp_path / "f").read_bytes().endswith(VALUES.tobytes())


def test_a_file_goes_on_behind_what_was_kept(tmp_path):
    file = HashedFile(tmp_path / "f")
    file.write(VALUES[:300])
    kept = file.sha256
    file.write(VALUES[:77])
    file.close()
    again = HashedFile(tmp_path / "f", kept_bytes=600, sha256=kept)
    again.write(VALUES[300:])
    again.close()
    assert again.sha256 == hashlib.sha256(VALUES.tobytes()).hexdigest() == file_sha256(tmp_path / "f")


@pytest.mark.parametrize("content", [b"x" * 600, b"x" * 599])
def test_a_beginning_that_changed_is_refused(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ValueError, match="has changed since it was written"):
        HashedFile(tmp_path / "f", kept_bytes=600, sha256=hashlib.sha256(VALUES[:300].tobytes()).hexdigest())


def test_a_changed_file_of_a_shard_is_found(tmp_path):
    for name in ("a.ds", "a.ds.index"):
        (tmp_path / name).write_bytes(b"bytes")
    right = file_sha256(tmp_path / "a.ds")
    require_whole(tmp_path, Shard("a.ds", 1, 1, sha256=right, index_sha256=right))
    assert list(changed_files(tmp_path, Shard("a.ds", 1, 1, right, "other"))) == [tmp_path / "a.ds.index"]
    with pytest.raises(ValueError, match=r"a\.ds has changed since it was written"):
        require_whole(tmp_path, Shard("a.ds", 1, 1, "other", right))
