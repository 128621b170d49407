"""Bundles of CORE's layout, small enough to work out by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

# After a space comes "a" more often than "b", and " ab" is the likeliest text; after "a" rather a space than after "b".
AFTER = {"x": {" ": 0.5}, " ": {"a": 0.6, "b": 0.3}, "a": {"b": 0.5, " ": 0.4}, "b": {" ": 0.2, "c": 0.7}}
CHOICES = [{"query": "Q", "choices": ["a", "b"], "gold": gold} for gold in (0, 0, 0, 1)]  # 3 of 4 are "a"
ENDINGS = [{"context": " x ", "continuation": text} for text in ("a", "ab", "b", "ba")]  # the first 2 are likeliest
CONTEXTS = [{"context_options": ["a", "b"], "continuation": "z", "gold": gold} for gold in (0, 1, 1, 1)]  # 1 is "a"
TASKS = {
    "choices": ("multiple_choice", 50, CHOICES),
    "endings": ("language_modeling", 0, ENDINGS),
    "contexts": ("schema", 60, CONTEXTS),
}
# Centred: (3/4 - 1/2) / (1 - 1/2) = 1/2, (2/4 - 0) / 1 = 1/2, (1/4 - 3/5) / (2/5) = -7/8; their mean is 1/24.
CORE = (1 / 2 + 1 / 2 - 7 / 8) / 3


def write_bundle(
    folder: Path,
    tasks: Mapping[str, tuple[str, float, Sequence[Mapping[str, Any]]]] = TASKS,
    *,
    num_shots: int = 0,
) -> Path:
    """Write a bundle of tasks: label -> kind, baseline in percent, items."""
    (folder / "eval_data" / "some").mkdir(parents=True)
    entries = [
        {"label": label, "dataset_uri": f"some/{label}.jsonl", "num_fewshot": [num_shots], "icl_task_type": kind}
        for label, (kind, _, _) in tasks.items()
    ]
    (folder / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": entries}))
    rows = [f"{label},{baseline}" for label, (_, baseline, _) in tasks.items()]
    (folder / "eval_meta_data.csv").write_text("\n".join(["Eval Task,Random baseline", *rows, ""]))
    for label, (_, _, items) in tasks.items():
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (folder / "eval_data" / "some" / f"{label}.jsonl").write_text(lines)
    return folder
