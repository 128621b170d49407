from lmtrain.doctor import disk
from lmtrain.doctor.disk import DiskSpeed, disk_speed, measure_disk, nearest_folder, room


def test_room_is_for_all_kept_checkpoints_with_some_to_spare(tmp_path):
    states = [room(tmp_path, needed_bytes=100, free=free).state for free in (1000, 150, 99)]
    assert states == ["ok", "warn", "bad"]


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path
    assert "a/b" in room(tmp_path / "a" / "b", needed_bytes=1, free=10).found


def test_measuring_leaves_nothing_behind(tmp_path):
    speed = measure_disk(tmp_path, num_bytes=4096)
    assert speed.write > 0
    assert speed.read > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_is_slow_by_its_rate_or_by_the_time_of_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "measure_disk", lambda path, num_bytes: DiskSpeed(write=100e6, read=1e9))
    assert disk_speed(tmp_path, checkpoint_bytes=10**9).state == "ok"
    large = disk_speed(tmp_path, checkpoint_bytes=10**11)
    assert large.state == "warn"
    assert "takes 16min40s" in large.found


def test_a_folder_that_cannot_be_written_is_bad(tmp_path, monkeypatch):
    def refuse(path, num_bytes):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(disk, "measure_disk", refuse)
    assert disk_speed(tmp_path, checkpoint_bytes=1).state == "bad"
