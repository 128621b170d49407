from lmtrain.tracking.following import NoTracking
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Status, read_status


def test_run_without_a_server_still_has_a_status(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.create()
    handle = NoTracking().start(folder)
    running = read_status(folder.path)
    tracked = handle.finish(Status("FINISHED", exit_code=0))
    ended = read_status(folder.path)
    assert running is not None
    assert ended is not None
    assert (running.status, ended.status) == ("RUNNING", "FINISHED")
    assert (tracked.run_id, tracked.is_complete) == (None, True)
