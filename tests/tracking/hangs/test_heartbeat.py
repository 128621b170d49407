import os
import subprocess

from lmtrain.tracking.hangs import BeatFile, ended_ranks, late_beats, read_beat, read_beats


def test_a_beat_is_read_as_it_was_written_and_a_torn_or_missing_file_is_none(tmp_path):
    with_micro_step = BeatFile(tmp_path, 3)
    with_micro_step.activity("backward", step=12, begins_micro_step=True)
    assert read_beat(tmp_path, 3) == with_micro_step.beat
    assert with_micro_step.beat.told(now=with_micro_step.beat.since + 2) == "backward of step 12, for 2.0 s"
    (tmp_path / "events/rank4.beat").write_bytes(b"torn")
    assert [read_beat(tmp_path, rank) for rank in (4, 5)] == [None, None]


def test_the_rank_in_the_earlier_activity_of_a_micro_step_is_late_and_nobody_where_all_are_equal(tmp_path):
    files = [BeatFile(tmp_path, rank) for rank in range(3)]
    for file in files:
        file.activity("forward", step=2, begins_micro_step=True)
    assert late_beats(read_beats(tmp_path, 3)) == []
    for rank, activity in ((0, "backward"), (2, "optimizer")):
        files[rank].activity(activity, step=2)
    assert [beat.rank for beat in late_beats(read_beats(tmp_path, 3))] == [1]


def test_ranks_whose_process_is_gone_are_told_from_the_living(tmp_path):
    beats = [BeatFile(tmp_path, rank).beat for rank in range(2)]
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = type(beats[1])(**{**vars(beats[1]), "process": ended.pid})
    assert ended_ranks([beats[0], gone], besides=5) == [gone]
    assert beats[0].process == os.getpid()
