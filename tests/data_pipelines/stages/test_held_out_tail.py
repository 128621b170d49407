import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages.held_out_tail import split_tail
from data_pipelines.stages.split import TEST, TRAIN, VALIDATION, HeldOut

LAST_TENTH = HeldOut(validation_fraction=0.05, test_fraction=0.05, rule="tail")


def split(texts, held_out=LAST_TENTH):
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    pairs = split_tail(documents, held_out=held_out, num_characters=sum(map(len, texts)))
    return [(name, document.text) for name, document in pairs]


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_the_last_tenth_is_held_out_in_reading_order(count):
    text = "".join(f"line {number:06d} of a book\n" for number in range(4000))
    size = len(text) // count
    texts = [text[start : start + size] for start in range(0, size * count, size)]
    pairs = split(texts)
    assert "".join(part for _, part in pairs) == text[: size * count], "nothing is lost or moved"
    assert [name for name, _ in pairs] == sorted((name for name, _ in pairs), key=[TRAIN, VALIDATION, TEST].index)
    for name, share in ((VALIDATION, 0.05), (TEST, 0.05)):
        length = sum(len(part) for of, part in pairs if of == name)
        assert length / (size * count) == pytest.approx(share, abs=0.002)


def test_only_a_long_document_is_cut_at_the_place_and_to_a_word():
    parts = split(["word " * 2000], HeldOut(validation_fraction=0.1, test_fraction=0, rule="tail"))
    assert [name for name, _ in parts] == [TRAIN, VALIDATION]
    assert parts[0][1].endswith("word ")
    assert len(split(["word " * 20] * 200)) == 200


def test_conversations_stay_whole_and_left_out_counts_go_with_the_first_part():
    chats = [Document(str(n), "", messages=({"role": "user", "content": "hi" * 50},)) for n in range(3)]
    pairs = list(split_tail(chats, held_out=LAST_TENTH, num_characters=300))
    assert [document for _, document in pairs] == chats
    book = Document("book", "word " * 2000, left_out={"empty": 2})
    first, *others = (part for _, part in split_tail([book], held_out=LAST_TENTH, num_characters=10_000))
    assert first.left_out == {"empty": 2}
    assert all(part.left_out is None for part in others)
