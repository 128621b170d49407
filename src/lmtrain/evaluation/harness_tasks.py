"""Tasks of the Language Model Evaluation Harness, scored by its library: each metric with its standard error.

Task files from anyone are YAML of plain values, with templates in a process with limits. The harness itself imports
what `!function` and `class` name, downloads the code of a metric (`hf_evaluate`), reads a pickle (`dataset_path:
pandas`), and renders templates without a sandbox (lm-eval 0.4.13, datasets 5.0).
"""

import importlib.util
import logging
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from jinja2 import TemplateError

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, DataError, EnvironmentProblem, suggest
from lmtrain.interop.template_renderer import TemplateRenderer
from lmtrain.missing_package import install_command
from lmtrain.storage import foreign_yaml
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.storage.damage import one_line

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from lmtrain.evaluation.harness_model import HarnessModel

NO_FILTER: Final = "none"
ERROR: Final = "_stderr"
MOST_NAMED: Final = 10  # tasks of a folder, in a refusal
NO_SCORES: Final = ("alias", "name", "sample_len", "sample_count")
TABLES: Final = ("json", "csv", "parquet", "text", "arrow")  # the readers of `datasets` for plain data
RUN_CODE: Final = ("class", "hf_evaluate", "trust_remote_code")
FIX: Final = "leave it out, or let the folder's code run with --allow-task-code"


@dataclass(frozen=True, kw_only=True)
class HarnessScore:
    """One metric of a task or group; `standard_error` None where the harness has none."""

    task: str
    metric: str
    value: float
    standard_error: float | None
    num_items: int | None
    num_shots: int | None


@dataclass(frozen=True, kw_only=True)
class HarnessTasks:
    """Tasks by name, found; `num_shots` None: each task's own."""

    names: tuple[str, ...]
    manager: "TaskManager"
    num_shots: int | None = None
    chat_template: bool = False
    max_items: int | None = None
    num_new_tokens: int | None = None


def find_tasks(
    names: Sequence[str], *, folder: Path | None, may_run_code: bool = False, **settings: Any
) -> HarnessTasks:
    """Find tasks in a folder of YAML files, then among the harness's own; `may_run_code` is of the folder.

    Raises:
        EnvironmentProblem: The package is not installed.
        ConfigurationError: The folder or task does not exist.
        DataError: The folder's files would run code.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise EnvironmentProblem(f"--lm-eval needs the package lm-eval: {install_command('eval')}")
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"--task-folder: {folder} is not a folder of lm-eval's YAML files.")
    if not may_run_code:
        use_sandbox(bounds_data=folder is not None)
        if folder is not None:
            require_plain_tasks(folder)
    from lm_eval.tasks import TaskManager

    _be_quiet()
    given = None if folder is None else str(folder)
    manager = TaskManager(include_path=given, include_defaults=False)
    of_folder = sorted(manager.all_tasks)
    if not set(names) <= set(manager.all_tasks):  # those of the harness itself take seconds to list
        manager = TaskManager(include_path=given)
    if missing := [name for name in names if name not in manager.all_tasks]:
        near = suggest(missing[0], manager.all_tasks)
        there = "" if folder is None else f" {folder} has {', '.join(of_folder[:MOST_NAMED]) or 'no task'}."
        raise ConfigurationError(f"--lm-eval: task {missing[0]} not found in lm-eval or --task-folder.{near}{there}")
    return HarnessTasks(names=tuple(names), manager=manager, **settings)


def score_tasks(model: "HarnessModel", tasks: HarnessTasks) -> list[HarnessScore]:
    """Score tasks in their order; data sets that are not local are downloaded by the harness.

    Raises:
        DataError: A task's data cannot be read.
    """
    import lm_eval
    from datasets.exceptions import DatasetsError

    simple_evaluate: Any = lm_eval.simple_evaluate  # pyright does not see through its decorator
    lengths = None if tasks.num_new_tokens is None else {"max_gen_toks": tasks.num_new_tokens}
    try:
        found: Any = simple_evaluate(
            model=model,
            tasks=list(tasks.names),
            num_fewshot=tasks.num_shots,
            limit=tasks.max_items,
            gen_kwargs=lengths,
            apply_chat_template=tasks.chat_template,
            task_manager=tasks.manager,
            log_samples=False,
        )
    except LMTRAIN_ERRORS:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, MemoryError, DatasetsError, TemplateError) as problem:
        why = f"{type(problem).__name__}: {one_line(problem).rstrip('.')}"
        raise DataError(
            f"--lm-eval {','.join(tasks.names)}: {why}. A local copy of the data is named in the task's file with "
            "dataset_path: json and dataset_kwargs.data_files."
        ) from problem
    return list(read_scores(found))


def read_scores(found: Mapping[str, Any]) -> Iterator[HarnessScore]:
    """Yield each metric of the harness's results; keys are `metric,filter`."""
    for task, row in found["results"].items():
        items = found.get("n-samples", {}).get(task, {}).get("effective")
        for key, value in row.items():
            metric, _, filtered = key.partition(",")
            if metric in NO_SCORES or metric.endswith(ERROR) or not isinstance(value, int | float):
                continue
            error = row.get(f"{metric}{ERROR},{filtered}")
            yield HarnessScore(
                task=task,
                metric=metric if filtered in ("", NO_FILTER) else f"{metric}/{filtered}",
                value=float(value),
                standard_error=float(error) if isinstance(error, int | float) else None,
                num_items=items,
                num_shots=found.get("n-shot", {}).get(task),
            )


def _be_quiet() -> None:
    """Silence the harness's progress."""
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)


def require_plain_tasks(folder: Path) -> None:
    """Refuse a folder of which a task file can run code.

    Raises:
        DataError: One can, or is not YAML.
    """
    files = {path.resolve() for path in folder.rglob("*.yaml")}
    for path in sorted(files):
        try:
            content = foreign_yaml.read(path)
        except (OSError, ValueError) as problem:
            raise DataError(f"{path} is not YAML of plain values ({problem}); {FIX}.") from problem
        for key, value in _settings(content):
            if key in RUN_CODE and value:
                raise DataError(f"{path}: {key}={value} runs code; {FIX}.")
            if key == "dataset_path" and value not in TABLES and value in _readers():
                raise DataError(f"{path}: dataset_path must be one of {', '.join(TABLES)}, got {value}; {FIX}.")
            for other in _listed(value) if key == "include" else ():
                if (path.parent / str(other)).resolve() not in files:
                    raise DataError(f"{path}: include must name a YAML file in {folder}, got {other}; {FIX}.")


def use_sandbox(*, bounds_data: bool) -> None:
    """Let the harness render templates in a process with limits from now on.

    `bounds_data` limits the memory for a stranger's rows; loading more raises a MemoryError.
    """
    import lm_eval.api.task as tasks
    import lm_eval.utils as harness

    own: Any = harness.env
    if not isinstance(own, _Templates):
        harness.env = _Templates(TemplateRenderer(kind="task"))
    if bounds_data:
        tasks.datasets = _BoundedDatasets()


@final
class _Templates:
    """The part of a jinja2 environment that the harness uses."""

    def __init__(self, renderer: TemplateRenderer) -> None:
        self._renderer = renderer

    def from_string(self, template: str) -> "_Template":
        """Return a template."""
        return _Template(self._renderer, template)


@final
@dataclass(frozen=True)
class _Template:
    renderer: TemplateRenderer
    text: str

    def render(self, **variables: Any) -> str:
        """Return its text; raises TemplateProblem."""
        return self.renderer.render(self.text, variables)


@final
class _BoundedDatasets:
    """The package `datasets` with a bound on the memory that loading may take."""

    def __getattr__(self, name: str) -> Any:
        import datasets

        return getattr(datasets, name)

    def load_dataset(self, *words: Any, **settings: Any) -> Any:
        """Load a data set."""
        import datasets

        load: Any = datasets.load_dataset
        with bounded_memory():
            return load(*words, **settings)


def _settings(content: Any) -> Iterator[tuple[str, Any]]:
    for value in content if isinstance(content, list) else ():
        yield from _settings(value)
    for key, value in content.items() if isinstance(content, dict) else ():
        yield str(key), value
        yield from _settings(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _readers() -> frozenset[str]:
    spec = importlib.util.find_spec("datasets")  # its import takes seconds
    folders = spec.submodule_search_locations if spec else None
    return frozenset(each.name for each in pkgutil.iter_modules([f"{one}/packaged_modules" for one in folders or ()]))
