import re
from functools import partial

import pytest
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.evaluation.harness import harness_tasks as module
from lmtrain.evaluation.harness.harness_tasks import find_tasks, read_scores, score_tasks
from lmtrain.missing_package import install_command
from tests.evaluation.harness.task_files import write_tasks


def test_metrics_come_with_their_errors_and_filters_and_without_names():
    rows = {
        "results": {
            "a": {"alias": "a", "sample_len": 4, "acc,none": 0.5, "acc_stderr,none": 0.1, "word,strict": 2.0},
            "b": {"name": "b", "ppl,none": 7.0, "ppl_stderr,none": "N/A"},
        },
        "n-samples": {"a": {"original": 9, "effective": 4}},
        "n-shot": {"a": 2},
    }
    found = [(one.task, one.metric, one.value, one.standard_error, one.num_items) for one in read_scores(rows)]
    assert found == [("a", "acc", 0.5, 0.1, 4), ("a", "word/strict", 2.0, None, 4), ("b", "ppl", 7.0, None, None)]


def test_a_wrong_folder_a_missing_package_and_missing_data_are_told(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"--task-folder .*nowhere is no folder"):
        find_tasks(["a"], folder=tmp_path / "nowhere")
    own = partial(TaskManager, include_defaults=False)  # the harness's own take seconds to list
    monkeypatch.setattr("lm_eval.tasks.TaskManager", own)
    with pytest.raises(ConfigurationError) as refused:
        find_tasks(["next_chioce"], folder=write_tasks(tmp_path / "listed"))
    assert "Did you mean 'next_choice'?" in str(refused.value)
    assert str(refused.value).endswith("listed has next_choice, next_text, next_write.")
    found = find_tasks(["next_choice"], folder=write_tasks(tmp_path / "tasks"))
    (tmp_path / "tasks" / "next.jsonl").unlink()
    with pytest.raises(DataError, match=r"--lm-eval next_choice: .*next\.jsonl"):
        score_tasks(get_model("dummy")(), found)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=re.escape(install_command("eval"))):
        find_tasks(["a"], folder=None)
