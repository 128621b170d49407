import pytest

from lmtrain.accounting.training_plan.stages import RowsToScore
from lmtrain.cli.commands.evaluating.work import evaluation_work
from lmtrain.errors import ConfigurationError
from lmtrain.evaluation.core import read_bundle
from tests.data.documents import make_dataset
from tests.evaluation.bundles import write_bundle


def test_nothing_asked_is_the_run_s_own_split():
    work = evaluation_work(["runs/a", "--precision", "bf16"])
    assert work.scores_own_split
    assert work.is_bf16
    assert work.num_answers == 0


def test_questions_are_counted_by_lines_and_made_ones_by_their_number(tmp_path):
    file = tmp_path / "asked.jsonl"
    file.write_text('{"messages": []}\n\n{"messages": []}\n')
    work = evaluation_work(["runs/a", "--made", "350", "--answers", str(file), "--num-new-tokens", "40"])
    assert (work.num_answers, work.answer_tokens, work.prompt_bytes) == (352, 40, file.stat().st_size)
    assert not work.scores_own_split
    assert work.counted == ("352 answers of 40 tokens each, at most",)


def test_core_is_counted_from_its_bundle(tmp_path):
    folder = write_bundle(tmp_path / "bundle")
    work = evaluation_work(["runs/a", "--core", str(folder)])
    assert len(work.rows) == len(read_bundle(folder))
    assert all(isinstance(rows.text_bytes, float) and rows.text_bytes > rows.num_rows for rows in work.rows)
    assert f"by their text in {folder}" in work.counted[0]


def test_core_without_a_bundle_has_nanochat_s_numbers_and_rows_of_a_whole_context():
    work = evaluation_work(["runs/a", "--core", "nowhere", "--max-items", "11", "--tasks", "boolq,copa"])
    assert list(work.rows) == [RowsToScore(num_rows=22), RowsToScore(num_rows=22)]
    assert "nowhere is not there, numbers of nanochat's bundle" in work.counted[0]


def test_data_and_text_have_their_own_sizes_and_what_is_not_there_is_told(tmp_path):
    folder = make_dataset(tmp_path / "data", [8, 8]).folder
    (tmp_path / "a.txt").write_text("abcd")
    work = evaluation_work(["runs/a", "--data", str(folder), "--split", "train", "--text", str(tmp_path / "a.txt")])
    assert (work.split_tokens, work.text_bytes, work.uncounted) == (16, 4, ())
    lacking = evaluation_work(["runs/a", "--data", "nowhere", "--text", "gone.txt", "--chat", "copies"])
    told = ("gone.txt is not there, and not counted", "nowhere is not there, and not counted", "--chat is not counted")
    assert lacking.uncounted == told


def test_wrong_flags_are_refused():
    with pytest.raises(ConfigurationError, match="--made 0 is below 1"):
        evaluation_work(["runs/a", "--made", "0"])
