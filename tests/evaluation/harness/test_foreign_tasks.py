"""A task file of a stranger runs nothing, by any of the harness's ways."""

import pickle
import subprocess
from functools import partial
from pathlib import Path

import lm_eval.utils as harness
import pytest
from lm_eval.api.registry import get_model

from lmtrain.errors import DataError
from lmtrain.evaluation.harness import foreign_tasks
from lmtrain.evaluation.harness.foreign_tasks import use_sandbox
from lmtrain.evaluation.harness.harness_tasks import find_tasks, score_tasks
from lmtrain.interop.template_renderer import TemplateProblem, TemplateRenderer
from lmtrain.storage.bounded_memory import bounded_memory
from tests.evaluation.harness.task_files import write_tasks
from tests.parquet_bombs import write_bomb


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


def test_templates_have_a_sandbox_with_limits() -> None:
    use_sandbox(bounds_data=False)
    assert harness.apply_template("{{a | regex_replace('b', 'c')}}\n", {"a": "ab"}) == "ac\n"
    attacks = {
        "{{ cycler.__init__.__globals__.os.system('true') }}": "unsafe",
        "{{ 'x' * 10 ** 10 }}": "MemoryError",
        "{{ nothing }}": "'nothing' is undefined",
        "{{ a | regex_replace('(', 'c') }}": "unterminated subpattern",
    }
    for template, part in attacks.items():
        with pytest.raises(TemplateProblem, match=part):
            harness.apply_template(template, {"a": "ab"})


def test_a_task_s_endless_expression_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_tasks, "TemplateRenderer", partial(TemplateRenderer, cpu_seconds=0.2))
    monkeypatch.setattr(harness, "env", None)
    use_sandbox(bounds_data=False)
    with pytest.raises(TemplateProblem, match=r"more than 0\.2 s of processor time"):
        harness.apply_template("{{ a | regex_replace('(a|a)*b', 'c') }}", {"a": "a" * 40})


def test_a_table_of_equal_rows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tasks(tmp_path / "tasks")
    write_bomb(folder / "test.parquet", num_rows=300, text_bytes=1 << 22)
    (folder / "mine.yaml").write_text(
        "task: mine\ndataset_path: parquet\noutput_type: loglikelihood_rolling\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {folder}/test.parquet}}, cache_dir: {tmp_path}/cache}}\n"
        'doc_to_text: ""\ndoc_to_target: "{{text}}"\nmetric_list: [{metric: bits_per_byte}]\n'
    )
    monkeypatch.setattr(foreign_tasks, "bounded_memory", partial(bounded_memory, more_bytes=1 << 28))
    tasks = find_tasks(["mine"], folder=folder)
    with pytest.raises(DataError, match=r"--lm-eval mine: .* Correct the task's file") as refusal:
        score_tasks(get_model("dummy")(), tasks)
    assert "\n" not in str(refusal.value)
