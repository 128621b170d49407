from data_pipelines.sources.base import Document
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.spool import Spool


def test_documents_come_back_in_order_by_split(tmp_path):
    documents = [Document(f"{n}", f'täxt {n}\n\u2028\x00 "quoted"') for n in range(7)]
    spool = Spool(tmp_path)
    for number, document in enumerate(documents):
        assert spool.append("train" if number % 2 else "test", document) == len(document.text.encode())
    parts = spool.finish()
    assert [d for part in parts["train"] for d in part.documents()] == documents[1::2]
    assert [d for part in parts["test"] for d in part.documents()] == documents[::2]


def test_a_part_ends_with_the_document_that_fills_it(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "PART_BYTES", 10)
    spool = Spool(tmp_path)
    for number in range(5):
        spool.append("train", Document(f"{number}", "xxxx"))
    parts = spool.finish()["train"]
    assert [(part.num_documents, part.text_bytes) for part in parts] == [(3, 12), (2, 8)]
    assert len({part.path for part in parts}) == 2


def test_an_empty_spool_has_no_splits(tmp_path):
    assert Spool(tmp_path).finish() == {}
