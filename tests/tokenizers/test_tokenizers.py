"""Every tokenizer gives every text back, and learned ones have the size asked for."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.base import (
    CHARACTER_OF_BYTE,
    END_OF_TEXT,
    bytes_of,
)
from lmtrain.tokenizers.bpe import SPLIT_EXPRESSION, BytePairTokenizer, train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.question_forms import choice_question, count_question

TEXT = "The same words, 12345 times; <|end_of_text|> ünd 世界\r\n"


@pytest.fixture(params=["byte_level", "bpe"], scope="module")
def tokenizer(request):
    made = {"byte_level": ByteLevelTokenizer, "bpe": lambda: train_byte_pairs([TEXT] * 9, vocab_size=300)}
    return made[request.param]()


def test_every_tokenizer_keeps_its_ids_below_its_vocabulary_size(tokenizer):
    assert 0 <= min(tokenizer.encode(TEXT)) <= max(tokenizer.encode(TEXT)) < tokenizer.vocab_size
    assert 0 <= tokenizer.end_of_text_id < tokenizer.vocab_size


def test_every_tokenizer_counts_the_bytes_of_a_text(tokenizer):
    counts = tokenizer.token_bytes()
    assert counts.shape == (tokenizer.vocab_size,)
    assert counts.dtype == np.uint16
    assert int(counts[tokenizer.encode(TEXT)].sum()) == len(TEXT.encode())
    assert counts[tokenizer.end_of_text_id] == 0


@given(st.text())
def test_text_survives_a_round_trip(text):
    tokenizer = ByteLevelTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_saved_tokenizer_reads_back_the_same(tmp_path):
    tokenizer = ByteLevelTokenizer(vocab_size=260)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.fingerprint, again.vocab_size) == (tokenizer.fingerprint, 260)
    assert again.fingerprint != ByteLevelTokenizer().fingerprint


def test_other_tools_read_the_same_ids_from_its_json(tmp_path):
    tokenizer = ByteLevelTokenizer()
    tokenizer.save(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Grüße, 世界!\n\t\x00 ~"
    assert reference.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)
    assert reference.decode(tokenizer.encode(text)) == text
    assert reference.token_to_id(END_OF_TEXT) == 256


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size: .*257"):
        ByteLevelTokenizer(vocab_size=256)


TEXTS = [f"def function_{n % 7}(argument): return argument + {n}  # Straße № {n}\n" * 3 for n in range(60)]
TOKENIZER = train_byte_pairs(TEXTS, vocab_size=400)


@pytest.mark.parametrize("vocab_size", [257, 300, 384, 5000])
def test_training_gives_exactly_the_vocabulary_asked_for(vocab_size):
    tokenizer = train_byte_pairs(TEXTS, vocab_size=vocab_size)
    assert tokenizer.vocab_size == len(tokenizer.token_bytes()) == vocab_size
    assert all(0 <= token < vocab_size for token in tokenizer.encode("".join(TEXTS) + "unseen Ωords"))


@given(st.text())
@example("")
@example("\r\n\r \u2028\x00 1234567 don't  DON'T\t\t")
@example("a<|end_of_text|>b <|unused_0|>")
def test_text_survives_a_round_trip_bpe(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert int(TOKENIZER.token_bytes()[ids].sum()) == len(text.encode())


@pytest.mark.parametrize("text", [END_OF_TEXT, f"x{END_OF_TEXT}{END_OF_TEXT}", f" {END_OF_TEXT}\n", "<|unused_3|>"])
def test_the_text_of_a_special_token_never_becomes_its_id(text):
    tokenizer = train_byte_pairs([*TEXTS, text * 50], vocab_size=2000)
    special_ids = set((tokenizer.token_bytes() == 0).nonzero()[0].tolist())
    assert tokenizer.end_of_text_id in special_ids
    assert not special_ids & set(tokenizer.encode(text))
    assert not special_ids & set(tokenizer.encode_batch([text])[0])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_texts_are_cut_as_by_gpt_4_but_into_two_digits():
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT_EXPRESSION), "isolated")
    pieces = [piece for piece, _ in split.pre_tokenize_str("I'll pay 12345 for_it  now!!\n\n x")]
    assert pieces == ["I", "'ll", " pay", " ", "12", "34", "5", " for", "_it", " ", " now", "!!\n\n", " x"]


def test_a_saved_tokenizer_reads_back_the_same_bpe(tmp_path):
    TOKENIZER.save(tmp_path)
    again = BytePairTokenizer((tmp_path / "tokenizer.json").read_text())
    assert again.fingerprint == TOKENIZER.fingerprint
    assert again.encode(TEXTS[3]) == TOKENIZER.encode(TEXTS[3])


def test_other_tools_read_the_same_ids_from_its_json_bpe(tmp_path):
    TOKENIZER.save(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert reference.encode(TEXTS[5], add_special_tokens=False).ids == TOKENIZER.encode(TEXTS[5])
    assert reference.token_to_id(END_OF_TEXT) == TOKENIZER.end_of_text_id


def test_the_fingerprint_is_of_the_content_not_of_the_spelling():
    content = json.loads(TOKENIZER._tokenizer.to_str())
    spelled = BytePairTokenizer(json.dumps(dict(reversed(content.items())), indent=3))
    assert spelled.fingerprint == TOKENIZER.fingerprint
    content["model"]["merges"].pop()
    assert BytePairTokenizer(json.dumps(content)).fingerprint != TOKENIZER.fingerprint


def test_training_does_not_depend_on_hash_seeds_or_threads():
    code = (
        "from lmtrain.tokenizers.bpe import train_byte_pairs;"
        "texts = [f'word{n % 13} other{n % 7} {n}\\n' * 4 for n in range(300)];"
        "print(train_byte_pairs(texts, vocab_size=330).fingerprint)"
    )
    settings = ({"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "4"})
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **setting, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for setting in settings
    }  # fmt: skip
    assert len(fingerprints) == 1


def test_a_vocabulary_without_room_is_refused_bpe():
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size: .*257"):
        train_byte_pairs(TEXTS, vocab_size=100)


def test_a_missing_end_of_text_names_the_special_tokens_there_are():
    with pytest.raises(DataError, match=r"tokenizer\.end_of_text: .*<\|end_of_text\|>"):
        BytePairTokenizer(TOKENIZER._tokenizer.to_str(), end_of_text="</s>")


def test_a_tokenizer_that_is_not_byte_level_is_refused():
    content = json.loads(TOKENIZER._tokenizer.to_str())
    content["model"]["vocab"]["▁the"] = 999
    with pytest.raises(DataError, match=r"not byte-level: .*▁.*tokenizer=bpe"):
        BytePairTokenizer(json.dumps(content))


def test_added_tokens_that_are_not_special_count_their_bytes():
    content = json.loads(TOKENIZER._tokenizer.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"].append({"id": 400, "content": "    ", **flags})
    tokenizer = BytePairTokenizer(json.dumps(content))
    assert tokenizer.vocab_size == 401
    assert tokenizer.encode("    ") == [400]
    assert tokenizer.token_bytes()[400] == 4


def test_the_table_is_the_one_of_the_tokenizers_library():
    assert set(CHARACTER_OF_BYTE) == set(pre_tokenizers.ByteLevel.alphabet())
    ((token, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é\n \x00~")
    assert bytes_of(token) == "é\n \x00~".encode()


def test_choices_stand_before_their_letters() -> None:
    assert choice_question("2 + 2?", ["3", "4"]) == "2 + 2?\n\n3 = A\n4 = B\n\nAnswer with one letter."


def test_a_count_asks_for_a_number_in_its_form() -> None:
    assert count_question("r", "berry") == "How many r are in berry? Write the number after ####."
