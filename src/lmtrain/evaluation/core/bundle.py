"""The CORE bundle on disk: `core.yaml`, `eval_meta_data.csv`, and JSON lines of each task below `eval_data/`.

The layout is that of the DCLM paper's evaluation (Li et al. 2024, arXiv:2406.11794) as nanochat ships it.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.storage import foreign_json, foreign_yaml
from lmtrain.storage.damage import told_as_damage

Kind = Literal["multiple_choice", "schema", "language_modeling"]
TASKS: Final = "core.yaml"
BASELINES: Final = "eval_meta_data.csv"
FIELDS: Final[Mapping[Kind, Mapping[str, type]]] = {
    "multiple_choice": {"query": str, "choices": list, "gold": int},
    "schema": {"context_options": list, "continuation": str, "gold": int},
    "language_modeling": {"context": str, "continuation": str},
}
OPTIONS: Final = {"multiple_choice": "choices", "schema": "context_options"}


@dataclass(frozen=True, kw_only=True)
class CoreTask:
    """A task of the bundle; `baseline` is the accuracy of a guess, from 0 to 1."""

    label: str
    kind: Kind
    file: Path
    num_shots: int
    delimiter: str
    baseline: float

    def items(self) -> list[Mapping[str, Any]]:
        """Return the task's items.

        Raises:
            DataError: The file is missing, or a line lacks a field of its kind of task.
        """
        if not self.file.is_file():
            raise DataError(f"task {self.label}: {self.file} is missing; copy the whole bundle, or leave the task out.")
        with told_as_damage(self.file, fix="copy the bundle again"), self.file.open(encoding="utf-8") as file:
            found = [self._item(line, number) for number, line in enumerate(file, start=1) if line.strip()]
        if len(found) <= self.num_shots:
            raise DataError(
                f"task {self.label}: {self.file} has {len(found)} items and {self.num_shots} examples go before each; "
                f"it needs {self.num_shots + 1}."
            )
        return found

    def _item(self, line: str, number: int) -> Mapping[str, Any]:
        where = f"task {self.label}: {self.file} line {number}"
        try:
            item = foreign_json.parse(line)
        except ValueError as problem:
            raise DataError(f"{where} is no JSON ({problem}); copy the bundle again.") from problem
        for field, kind in FIELDS[self.kind].items():
            if not isinstance(item, dict) or not isinstance(item.get(field), kind):
                raise DataError(f"{where} has no {field} of type {kind.__name__}, as {self.kind} needs.")
        if (options := OPTIONS.get(self.kind)) and not 0 <= item["gold"] < len(item[options]):
            raise DataError(f"{where}: gold={item['gold']} is none of its {len(item[options])} {options}.")
        return item


def read_bundle(folder: Path, *, only: tuple[str, ...] = ()) -> list[CoreTask]:
    """Return the tasks of a bundle in their order, or `only` those of these labels.

    Raises:
        ConfigurationError: A label is none of the bundle's.
        DataError: The folder is no bundle, or has not the file of a task.
    """
    tasks = [_task(folder, entry, _baselines(folder)) for entry in _entries(folder)]
    labels = [task.label for task in tasks]
    for label in only:
        if label not in labels:
            has = ", ".join(labels)
            raise ConfigurationError(f"--tasks {label} is no task of {folder}; it has {has}.{suggest(label, labels)}")
    chosen = [task for task in tasks if not only or task.label in only]
    missing = [f"{task.label} ({task.file.name})" for task in chosen if not task.file.is_file()]
    if missing:
        raise DataError(
            f"{folder} lacks the data of {', '.join(missing)} below eval_data/; copy the whole bundle, or name the "
            "tasks that are there with --tasks."
        )
    return chosen


def _entries(folder: Path) -> list[Mapping[str, Any]]:
    try:
        content = foreign_yaml.read(folder / TASKS)
        entries = content["icl_tasks"]
    except OSError as problem:
        raise DataError(f"{folder} is no CORE bundle: it has no {TASKS}; unpack eval_bundle.zip there.") from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise DataError(f"{folder / TASKS} has no list icl_tasks; copy the bundle again.") from problem
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{folder / TASKS} has no list icl_tasks; copy the bundle again.")
    return entries


def _baselines(folder: Path) -> Mapping[str, float]:
    try:
        with (folder / BASELINES).open(encoding="utf-8", newline="") as file:
            return {row["Eval Task"]: float(row["Random baseline"]) / 100 for row in csv.DictReader(file)}
    except OSError as problem:
        raise DataError(f"{folder} has no {BASELINES}, which holds each task's baseline.") from problem
    except (KeyError, TypeError, ValueError) as problem:
        raise DataError(
            f"{folder / BASELINES} needs the columns Eval Task and Random baseline, in percent; found {problem}."
        ) from problem


def _task(folder: Path, entry: Mapping[str, Any], baselines: Mapping[str, float]) -> CoreTask:
    try:
        label, kind = str(entry["label"]), str(entry["icl_task_type"])
        file, shots = folder / "eval_data" / str(entry["dataset_uri"]), int(entry["num_fewshot"][0])
        delimiter = str(entry.get("continuation_delimiter", " "))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as problem:
        raise DataError(f"{folder / TASKS}: {entry!r} is no task; {problem!r} is missing or wrong.") from problem
    if kind not in get_args(Kind):
        raise DataError(f"task {label}: icl_task_type={kind} is none of {', '.join(FIELDS)}.{suggest(kind, FIELDS)}")
    if not file.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"task {label}: dataset_uri={entry['dataset_uri']} leads out of {folder}.")
    if not 0 <= baselines.get(label, -1) < 1:
        raise DataError(f"task {label} has no baseline from 0 to below 100 in {folder / BASELINES}.")
    return CoreTask(
        label=label, kind=cast("Kind", kind), file=file, num_shots=shots, delimiter=delimiter, baseline=baselines[label]
    )
