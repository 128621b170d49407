import pickle
import subprocess
import sys

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.clean import LengthFilter
from data_pipelines.stages.pieces import read_items, write_items


def test_a_file_named_on_standard_input_gets_what_becomes_of_its_documents(tmp_path):
    (tmp_path / "stages.pickle").write_bytes(pickle.dumps((LengthFilter(),)))
    path = tmp_path / "batch.jsonl"
    write_items(path, [Document("a", ""), Document("b", "x")])
    command = [sys.executable, "-m", "data_pipelines.engines.stage_worker", str(tmp_path / "stages.pickle")]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    worker = subprocess.run(command, input=f"{path}\n", capture_output=True, text=True, env=environment, check=True)
    assert worker.stdout == f"{path}\n"
    assert list(read_items(path)) == [Skipped("a", "empty"), Document("b", "x")]
