import re

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation.core.bundle import read_bundle
from tests.evaluation.core.bundles import write_bundle


def test_tasks_come_in_the_order_of_the_bundle_with_their_baselines(tmp_path):
    tasks = read_bundle(write_bundle(tmp_path / "bundle"))
    assert [(task.label, task.baseline, task.delimiter) for task in tasks] == [
        ("choices", 0.5, " "),
        ("endings", 0.0, " "),
        ("contexts", 0.6, " "),
    ]
    assert [task.label for task in read_bundle(tmp_path / "bundle", only=("contexts",))] == ["contexts"]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("core.yaml", None, "is no CORE bundle: it has no core.yaml; unpack eval_bundle.zip there"),
        ("core.yaml", "icl_tasks: 3", "has no list icl_tasks"),
        ("core.yaml", "icl_tasks: [{label: a}]", "is no task; KeyError"),
        ("eval_meta_data.csv", None, "has no eval_meta_data.csv"),
        ("eval_meta_data.csv", "a,b\n1,2\n", "needs the columns Eval Task and Random baseline"),
        ("eval_meta_data.csv", "Eval Task,Random baseline\nchoices,100\n", "task choices has no baseline"),
        ("eval_data/some/endings.jsonl", None, "lacks the data of endings (endings.jsonl) below eval_data/"),
        ("eval_data/some/choices.jsonl", "{\n", "choices.jsonl line 1 is no JSON"),
        ("eval_data/some/choices.jsonl", '{"query": "Q", "gold": 0}\n', "line 1 has no choices of type list"),
        ("eval_data/some/choices.jsonl", '{"query": "Q", "choices": ["a"], "gold": 1}\n', "gold=1 is none of its 1"),
        ("eval_data/some/choices.jsonl", "", "has 0 items and 0 examples go before each; it needs 1"),
    ],
)
def test_a_damaged_bundle_says_what_is_wrong(tmp_path, file, text, said):
    folder = write_bundle(tmp_path / "bundle")
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    with pytest.raises(DataError, match=re.escape(said)):
        [task.items() for task in read_bundle(folder)]


def test_a_file_outside_the_bundle_and_an_unknown_label_are_refused(tmp_path):
    folder = write_bundle(tmp_path / "bundle")
    with pytest.raises(ConfigurationError, match=r"--tasks choice is no task of .*; it has .* Did you mean 'choices'"):
        read_bundle(folder, only=("choice",))
    config = folder / "core.yaml"
    config.write_text(config.read_text().replace("some/endings.jsonl", "../../secret.jsonl"))
    with pytest.raises(DataError, match="leads out of"):
        read_bundle(folder)
