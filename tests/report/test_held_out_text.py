from lmtrain.report.held_out_text import UNKNOWN, HeldOutText, scores_notes


def text(*, source="notes", split_bytes=5000, num_bytes=5000, tokenizer="t"):
    return HeldOutText(source=source, split_bytes=split_bytes, num_bytes=num_bytes, tokenizer=tokenizer)


def test_scores_of_one_text_compare():
    assert scores_notes([text(), text(num_bytes=4990)]) == []
    assert scores_notes([text(), text(source=UNKNOWN, tokenizer="u")]) == []
    assert scores_notes([]) == []


def test_other_texts_parts_and_tokenizers_are_told():
    (texts,) = scores_notes([text(), text(split_bytes=6000, tokenizer="u")])
    assert texts.endswith("another's: notes (5,000 held-out bytes), notes (6,000 held-out bytes).")
    part, tokenizers = scores_notes([text(), text(num_bytes=100, tokenizer="u")])
    assert part.startswith("Between 100 and 5,000 bytes")
    assert tokenizers == "The tokenizers differ: nats per token do not compare."
