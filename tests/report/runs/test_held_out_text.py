from dataclasses import replace

from lmtrain.report.runs.held_out_text import parts_notes, scores_notes, smaller_parts, why_unranked
from lmtrain.tracking.held_out_text import UNKNOWN, HeldOutText


def text(*, source="notes", split_bytes=5000, num_bytes=5000, tokenizer="t"):
    return HeldOutText(source=source, split_bytes=split_bytes, num_bytes=num_bytes, tokenizer=tokenizer)


def test_scores_of_one_text_compare():
    assert scores_notes([text(), text(num_bytes=4990)]) == []
    assert scores_notes([text(), text(source=UNKNOWN, tokenizer="u")]) == []
    assert scores_notes([]) == []


def test_other_texts_parts_and_tokenizers_are_told():
    (texts,) = scores_notes([text(), text(split_bytes=6000, num_bytes=5999, tokenizer="u")])
    assert texts.endswith("another's: notes (5,000 held-out bytes), notes (6,000 held-out bytes).")
    (parts,) = scores_notes([text(num_bytes=3000), text(source="a book", num_bytes=4999)])
    assert parts.endswith("another's: notes (3,000 of 5,000 held-out bytes), a book (5,000 held-out bytes).")
    turns = [replace(text(), is_assistant=True, num_bytes=each) for each in (9, 70, 8)]
    assert scores_notes([*turns, text()])[0].endswith(
        "notes (the assistant's words, 70 of 5,000 held-out bytes), notes (5,000 held-out bytes)."
    )
    part, tokenizers = scores_notes([text(), text(num_bytes=100, tokenizer="u")])
    assert part.startswith("Between 100 and 5,000 bytes")
    assert tokenizers == "The tokenizers differ: nats per token do not compare."


def test_each_smaller_part_of_a_text_has_a_number_and_the_largest_none():
    whole, near, half, small = (text(num_bytes=number) for number in (5000, 4980, 2500, 12))
    other, unknown = text(source="a book", num_bytes=70), text(source=UNKNOWN, num_bytes=1)
    found = smaller_parts([small, other, half, whole, unknown, near, text(num_bytes=2499), text(num_bytes=0)])
    assert found == {half: 1, text(num_bytes=2499): 1, small: 2}
    first, second = parts_notes(found)
    assert first.startswith("[1] Measured on 2,500 of 5,000 held-out bytes of notes: ")
    assert second.startswith("[2] Measured on 12 of 5,000 ")
    assert smaller_parts([half, half]) == {}, "beside no other part there is nothing to tell apart"


def test_scores_are_ranked_on_one_part_of_one_text_and_nats_of_one_tokenizer():
    bits, loss = "validation/bits_per_byte", "validation/loss"
    assert why_unranked([text(), text(num_bytes=4990), text(source=UNKNOWN)], metric=bits) is None
    assert why_unranked([text(), text(tokenizer="u")], metric=bits) is None
    assert "not the same part" in str(why_unranked([text(), text(num_bytes=100)], metric=bits))
    assert why_unranked([text(), text(num_bytes=100)], metric="train/loss") is None, "not of the held-out text"
    assert "texts differ" in str(why_unranked([text(), text(split_bytes=6000)], metric="train/loss"))
    assert "no validation/loss of one" in str(why_unranked([text(), text(tokenizer="u")], metric=loss))
