"""Copies of the chat tasks' data sets in their own layout, small enough to work out by hand."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

ARC = [
    {"id": "1", "question": "Q", "choices": {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "answerKey": "B"},
    {"id": "2", "question": "Q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"},
]
MMLU = [{"question": "Q", "subject": "s", "choices": ["w", "x", "y", "z"], "answer": gold} for gold in (1, 1, 3, 1)]
GSM8K = [{"question": "How many?", "answer": f"So <<1+1=2>>2.\n#### {right}"} for right in ("2", "1,200")]


def write_copies(folder: Path) -> Path:
    """Write all data sets: parquet, JSON lines, and in parts."""
    for part in ("ARC-Easy", "ARC-Challenge"):
        (folder / "ai2_arc" / part).mkdir(parents=True)
        parquet.write_table(pa.Table.from_pylist(ARC), folder / "ai2_arc" / part / "test-00000-of-00001.parquet")
    (folder / "mmlu" / "all").mkdir(parents=True)
    for number, rows in enumerate((MMLU[:2], MMLU[2:])):
        path = folder / "mmlu" / "all" / f"test-{number:05}-of-00002.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), path)
    (folder / "gsm8k").mkdir()
    (folder / "gsm8k" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    (folder / "words_alpha.txt").write_text("banana\nkiwi\nit\n")
    return folder
