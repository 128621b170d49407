"""Parquet files of some hundred or thousand bytes that hold any number of equal values: a file keeps one of them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_bomb(path: Path, *, num_rows: int, text_bytes: int) -> None:
    """Write rows of one text, by its number in a dictionary."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), pa.array(["a" * text_bytes]))
    table = pa.table({"text": texts, "answer": pa.array([1] * num_rows)})
    pq.write_table(table, path, compression="zstd", store_schema=False, row_group_size=num_rows)
    assert path.stat().st_size < 1 << 15
