import json

import pytest

from data_pipelines.sources.files import Files
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from data_pipelines.sources.python_stdlib import PythonStandardLibrary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(9)))
    (folder / "code.py").write_text("print('text')\n")
    return str(folder)


@pytest.fixture(params=["python_stdlib", "files", "hf_dataset"])
def make_source(request, folder):
    """Make the same source anew each time."""
    makers = {
        "python_stdlib": lambda: PythonStandardLibrary(folder=folder),
        "files": lambda: Files(paths=[folder]),
        "hf_dataset": lambda: HuggingFaceDataset(name=folder),
    }
    return makers[request.param]


def test_every_source_yields_the_same_documents_each_time(make_source):
    source = make_source()
    documents = list(source.documents())
    assert documents
    assert list(source.documents()) == list(make_source().documents()) == documents
    assert len({document.id for document in documents}) == len(documents)


def test_every_source_has_a_steady_fingerprint_and_a_name_fit_for_a_folder(make_source):
    assert make_source().fingerprint() == make_source().fingerprint()
    assert "/" not in make_source().name
    assert make_source().name
