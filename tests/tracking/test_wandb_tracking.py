import json
import struct

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.trackers import WandbTracking
from tests.tracking.followed_runs import follow_attempt

BLOCK, FULL, LAST = 1 << 15, 1, 4


def records(path):
    """Yield the records of an offline attempt, from chunks as LevelDB's log format has them: crc, length, kind."""
    file, record = path.read_bytes(), b""
    place = 7  # after wandb's own header
    while place + 7 <= len(file):
        length, kind = struct.unpack("<HB", file[place + 4 : place + 7])
        record += file[place + 7 : place + 7 + length]
        place += 7 + length
        if 0 < BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
        if kind in (FULL, LAST):
            yield record
            record = b""


def history(path):
    """Yield the rows that an offline attempt keeps for `wandb sync`."""
    from wandb.proto import wandb_internal_pb2  # takes as long to import as all the tests together

    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            yield {key: value for key, value in items.items() if not key.startswith("_")}


def test_a_resumed_run_is_one_run_with_each_point_once(tmp_path):
    tracking = WandbTracking(mode="offline")
    assert follow_attempt(tracking, tmp_path / "a", {1: 9.0, 2: 8.0}).is_complete
    assert follow_attempt(tracking, tmp_path / "a", {2: 8.0, 3: float("nan")}, resumed_from=1).is_complete
    import wandb  # seconds

    wandb.teardown()  # its service writes on for a moment after a run's end, and now has ended
    attempts = [*(tmp_path / "a/wandb").glob("offline-*/*.wandb")]
    assert len(attempts) == 2
    assert len({path.name for path in attempts}) == 1  # it has the run's id
    assert sorted((row for path in attempts for row in history(path)), key=lambda row: (row["step"], len(row))) == [
        {"step": 1, "tokens": 100, "train/loss": 9.0},
        {"step": 2, "tokens": 200, "train/loss": 8.0},
        {"step": 2, "tokens": 200, "validation/bits_per_byte": 4.0},
        {"step": 3, "tokens": 300, "train/loss": "nan"},
    ]


def test_no_key_and_no_project_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(EnvironmentProblem, match=r"`wandb login` once, set WANDB_API_KEY, or use logger\.mode=offline"):
        WandbTracking()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    WandbTracking()
    with pytest.raises(ConfigurationError, match=r"logger\.project='' is empty"):
        WandbTracking(project="")
