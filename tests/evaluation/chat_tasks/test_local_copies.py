from lmtrain.evaluation.chat_tasks.local_copies import find_files, read_rows
from tests.evaluation.chat_tasks.copies import write_copies


def test_parts_come_in_their_order_and_a_folder_may_be_flat(tmp_path):
    folder = write_copies(tmp_path / "copies")
    files = find_files(folder, "mmlu", "all")
    assert [row["answer"] for row in read_rows(files, {"answer": int})] == [1, 1, 3, 1]
    assert [path.name for path in find_files(folder, "gsm8k", "main")] == ["test.jsonl"]
    assert find_files(folder, "gsm8k_new", "main") == []
