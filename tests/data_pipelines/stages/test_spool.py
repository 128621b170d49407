from data_pipelines.sources.base import Document
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.spool import cut_into_blocks, load_block, num_bytes

CHAT = ({"role": "user", "content": "hällo"}, {"role": "assistant", "content": "hi"})
DOCUMENTS = [
    ("train", Document("a", 'täxt\n\u2028\x00 "quoted"')),
    ("test", Document("b", "plain")),
    ("train", Document("c", "", messages=CHAT)),
    ("validation", Document("d", "\U0001f600 last")),
]


def test_a_block_comes_back_from_the_disk_as_it_was(tmp_path):
    (block,) = cut_into_blocks(DOCUMENTS)
    block.save(tmp_path / "block")
    again = load_block(tmp_path / "block", number=block.number, left_out=block.left_out)
    assert again == block
    assert again.sha256 == block.sha256
    assert list(zip(again.splits, again.documents, strict=True)) == DOCUMENTS


def test_the_digest_sees_text_name_and_split():
    def digest(split, *document):
        return next(cut_into_blocks([(split, Document(*document))])).sha256

    digests = [
        digest("train", "a", "x"),
        digest("train", "a", "y"),
        digest("train", "b", "x"),
        digest("test", "a", "x"),
    ]
    assert len(set(digests)) == 4
    assert digest("train", "a", "x") == digests[0]


def test_a_block_ends_with_the_document_that_fills_it_and_knows_what_was_left_out_before_each(monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 10)
    documents = [("train", Document(f"{number}", "xxxx", left_out={"empty": number})) for number in range(5)]
    blocks = list(cut_into_blocks(documents))
    assert [[document.id for document in block.documents] for block in blocks] == [["0", "1", "2"], ["3", "4"]]
    assert [block.number for block in blocks] == [0, 1]
    assert [block.left_out for block in blocks] == [
        {0: {"empty": 0}, 1: {"empty": 1}, 2: {"empty": 2}},
        {0: {"empty": 3}, 1: {"empty": 4}},
    ]


def test_conversations_fill_blocks_too(monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 100)
    documents = [("train", Document(f"{number}", "", messages=CHAT)) for number in range(10)]
    assert len(list(cut_into_blocks(documents))) > 3


def test_nothing_is_no_block():
    assert list(cut_into_blocks([])) == []


def test_bytes_are_those_of_utf_8():
    assert [num_bytes(text) for text in ("", "abc", "ä", "\U0001f600")] == [0, 3, 2, 4]
