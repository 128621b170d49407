"""Tasks of the Language Model Evaluation Harness, scored by its library: each metric with its standard error.

Task files can run code: the harness imports what `!function` and `class` name, downloads the code of a metric, reads
pickles, and renders templates without a sandbox (lm-eval 0.4.13). Those of a folder need permission.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import TemplateError

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, DataError, suggest
from lmtrain.missing_package import require_package
from lmtrain.storage.damage import one_line

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from lmtrain.evaluation.harness_model import HarnessModel

NO_FILTER: Final = "none"
ERROR: Final = "_stderr"
NO_SCORES: Final = ("alias", "name", "sample_len", "sample_count")


@dataclass(frozen=True, kw_only=True)
class HarnessScore:
    """One metric of a task or group; `standard_error` None where the harness has none."""

    task: str
    metric: str
    value: float
    standard_error: float | None
    num_items: int | None
    num_shots: int | None


def find_tasks(names: Sequence[str], *, folder: Path | None, may_run_code: bool = False) -> "TaskManager":
    """Find tasks in a folder of YAML files, then among the harness's own; `may_run_code` is of the folder.

    Raises:
        EnvironmentProblem: The package is not installed.
        ConfigurationError: The folder or task does not exist, or the folder's code may not run.
    """
    require_package("--lm-eval", "lm_eval", extra="eval")
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"--task-folder: {folder} is not a folder of lm-eval's YAML files.")
    if folder is not None and not may_run_code:
        raise ConfigurationError(f"--task-folder: {folder} can run code; read its files, then add --allow-task-code.")
    from lm_eval.tasks import TaskManager

    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    given = None if folder is None else str(folder)
    manager = TaskManager(include_path=given, include_defaults=False)
    if not set(names) <= set(manager.all_tasks):  # those of the harness itself take seconds to list
        manager = TaskManager(include_path=given)
    if missing := [name for name in names if name not in manager.all_tasks]:
        near = suggest(missing[0], manager.all_tasks)
        raise ConfigurationError(f"--lm-eval: task {missing[0]} not found in lm-eval or --task-folder.{near}")
    return manager


def score_tasks(
    model: "HarnessModel",
    names: Sequence[str],
    tasks: "TaskManager",
    *,
    num_shots: int | None = None,
    chat_template: bool = False,
    max_items: int | None = None,
    num_new_tokens: int | None = None,
) -> list[HarnessScore]:
    """Score tasks by name in their order; data sets that are not local are downloaded by the harness.

    `num_shots` None: each task's own.
    """
    import lm_eval
    from datasets.exceptions import DatasetsError

    simple_evaluate: Any = lm_eval.simple_evaluate  # pyright does not see through its decorator
    lengths = None if num_new_tokens is None else {"max_gen_toks": num_new_tokens}
    try:
        found: Any = simple_evaluate(
            model=model,
            tasks=list(names),
            num_fewshot=num_shots,
            limit=max_items,
            gen_kwargs=lengths,
            apply_chat_template=chat_template,
            task_manager=tasks,
            log_samples=False,
        )
    except LMTRAIN_ERRORS:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, MemoryError, DatasetsError, TemplateError) as problem:
        why = f"{type(problem).__name__}: {one_line(problem).rstrip('.')}"
        raise DataError(
            f"--lm-eval {','.join(names)}: {why}. A local copy of the data is named in the task's file with "
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
