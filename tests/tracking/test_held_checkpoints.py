import shutil

from lmtrain.tracking.held_checkpoints import claim, held, hold, release, step_of, unclaim, waiting


def checkpoint(run, step):
    folder = run / "checkpoints" / f"step_{step:08d}"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "weights").write_text("w" * step)
    return folder


def test_a_held_checkpoint_outlives_its_own_and_takes_no_room(tmp_path):
    folder = checkpoint(tmp_path, 20)
    place = hold(tmp_path, folder)
    assert (place / "inner" / "weights").stat().st_ino == (folder / "inner" / "weights").stat().st_ino
    shutil.rmtree(folder)
    assert (place / "inner" / "weights").read_text() == "w" * 20
    assert step_of(place) == 20
    release(place)
    assert held(tmp_path) == []


def test_one_alone_claims_a_waiting_one_and_a_killed_one_s_claims_are_let_go(tmp_path):
    places = [hold(tmp_path, checkpoint(tmp_path, step)) for step in (30, 20)]
    assert waiting(tmp_path) == places[::-1], "the oldest first"
    assert (claim(places[0]), claim(places[0])) == (True, False)
    assert waiting(tmp_path) == [places[1]]
    unclaim(tmp_path)
    assert waiting(tmp_path) == places[::-1]
    release(places[0])
    assert not claim(places[0]), "it is gone"
