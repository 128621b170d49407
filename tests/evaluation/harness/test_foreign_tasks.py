"""A task file of a stranger runs nothing, by any of the harness's ways."""

import pickle
import subprocess
from pathlib import Path

import lm_eval.utils as harness
import pytest
from jinja2.exceptions import SecurityError

from lmtrain.errors import DataError
from lmtrain.evaluation.harness.foreign_tasks import use_sandbox
from lmtrain.evaluation.harness.harness_tasks import find_tasks
from tests.evaluation.harness.task_files import write_tasks


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return subprocess.call, (["touch", str(self.path)],)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("process_docs: !function evil.attack", "could not determine a constructor for the tag '!function'"),
        ("metric_list: [{metric: !function evil.attack}]", "'!function'"),
        ("class: evil.Attack", "class=evil.Attack runs code of its own"),
        ("metric_list: [{metric: a/b, hf_evaluate: true}]", "hf_evaluate=True runs code"),
        ("dataset_path: pandas\ndataset_kwargs: {data_files: {test: evil.pkl}}", "dataset_path=pandas is none of json"),
        ("include: ../other.txt", "include=../other.txt is no YAML file of"),
        ("x: !!python/object/apply:os.system [touch touched]", "python/object/apply:os.system"),
        ("x: " + "[" * 1500, "nested more than 100 deep"),
    ],
)
def test_a_task_that_can_run_code_is_refused(line: str, part: str, tmp_path: Path) -> None:
    folder = write_tasks(tmp_path / "tasks")
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'touched')!r}).touch()\n")
    (folder / "evil.pkl").write_bytes(pickle.dumps(Touch(tmp_path / "touched")))
    (tmp_path / "other.txt").write_text("process_docs: !function tasks.evil.attack")
    (folder / "mine.yaml").write_text(f"task: mine\n{line}\n")
    with pytest.raises(DataError) as refusal:
        find_tasks(["mine"], folder=folder)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "--allow-task-code" in str(refusal.value)
    assert not (tmp_path / "touched").exists()


def test_templates_have_a_sandbox() -> None:
    use_sandbox()
    assert harness.apply_template("{{a | regex_replace('b', 'c')}}", {"a": "ab"}) == "ac"
    with pytest.raises(SecurityError, match="unsafe"):
        harness.apply_template("{{ cycler.__init__.__globals__.os.system('true') }}", {})
