from dataclasses import replace

from lmtrain.tracking.sweep_file import HeldOutText


def test_a_text_is_the_same_for_every_tokenizer_and_part() -> None:
    whole = HeldOutText(source="notes", split_bytes=5000, num_bytes=5000, tokenizer="t")
    part = HeldOutText(source="notes", split_bytes=5000, num_bytes=100, tokenizer="u")
    assert part.text == whole.text
    assert part.words == "notes (100 of 5,000 held-out bytes)"
    answers = replace(part, is_assistant=True)
    assert answers.text != part.text, "the assistant's words are another text than all turns"
    assert answers.words == "notes (the assistant's words, 100 of 5,000 held-out bytes)"
