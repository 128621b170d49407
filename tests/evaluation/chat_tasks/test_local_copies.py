import pytest

from lmtrain.errors import DataError
from lmtrain.evaluation.chat_tasks.local_copies import find_files, read_rows
from tests.evaluation.chat_tasks.copies import write_copies
from tests.parquet_bombs import write_bomb


def test_parts_come_in_their_order_and_a_folder_may_be_flat(tmp_path):
    folder = write_copies(tmp_path / "copies")
    files = find_files(folder, "mmlu", "all")
    assert [row["answer"] for row in read_rows(files, {"answer": int})] == [1, 1, 3, 1]
    assert [path.name for path in find_files(folder, "gsm8k", "main")] == ["test.jsonl"]
    assert find_files(folder, "gsm8k_new", "main") == []


@pytest.mark.parametrize(
    ("num_rows", "text_bytes", "as_numbers"), [(300, 1 << 20, False), (300, 1 << 20, True), (2_000_000, 1, False)]
)
def test_a_table_of_equal_rows_without_end_is_refused(num_rows, text_bytes, as_numbers, tmp_path):
    path = tmp_path / "test.parquet"
    write_bomb(path, num_rows=num_rows, text_bytes=text_bytes, column="question", as_numbers=as_numbers)
    with pytest.raises(DataError, match=r"test\.parquet is damaged \(it has more than 1,048,576 rows, or 67,108,864"):
        read_rows([tmp_path / "test.parquet"], {"question": str, "answer": int})
