"""Copies of the chat tasks' data sets in their own layout, small enough to work out by hand."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

SUM = 'def add(a, b):\n    """Add."""\n'
ARC = [
    {"id": "1", "question": "Q", "choices": {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "answerKey": "B"},
    {"id": "2", "question": "Q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"},
]
MMLU = [{"question": "Q", "subject": "s", "choices": ["w", "x", "y", "z"], "answer": gold} for gold in (1, 1, 3, 1)]
GSM8K = [{"question": "How many?", "answer": f"So <<1+1=2>>2.\n#### {right}"} for right in ("2", "1,200")]
HUMANEVAL = [
    {"task_id": "H/0", "prompt": SUM, "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add"}
]


def write_copies(folder: Path) -> Path:
    """Write all six data sets: parquet, JSON lines, packed and in parts."""
    for part in ("ARC-Easy", "ARC-Challenge"):
        (folder / "ai2_arc" / part).mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(ARC), folder / "ai2_arc" / part / "test-00000-of-00001.parquet")
    (folder / "mmlu" / "all").mkdir(parents=True)
    for number, rows in enumerate((MMLU[:2], MMLU[2:])):
        path = folder / "mmlu" / "all" / f"test-{number:05}-of-00002.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), path)
    (folder / "gsm8k").mkdir()
    (folder / "gsm8k" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    (folder / "openai_humaneval" / "openai_humaneval").mkdir(parents=True)
    with gzip.open(folder / "openai_humaneval" / "openai_humaneval" / "test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in HUMANEVAL)
    (folder / "words_alpha.txt").write_text("banana\nkiwi\nit\n")
    return folder
