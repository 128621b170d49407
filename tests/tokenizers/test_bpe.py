import json
import os
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.bpe import SPLIT_EXPRESSION, BytePairTokenizer, train_byte_pairs
from lmtrain.tokenizers.special_tokens import END_OF_TEXT

TEXTS = [f"def function_{n % 7}(argument): return argument + {n}  # Straße № {n}\n" * 3 for n in range(60)]
TOKENIZER = train_byte_pairs(TEXTS, vocab_size=400)


@pytest.mark.parametrize("vocab_size", [257, 300, 384, 5000])
def test_training_gives_exactly_the_vocabulary_asked_for(vocab_size):
    tokenizer = train_byte_pairs(TEXTS, vocab_size=vocab_size)
    assert tokenizer.vocab_size == len(tokenizer.token_bytes()) == vocab_size
    assert all(0 <= token < vocab_size for token in tokenizer.encode("".join(TEXTS) + "unseen Ωords"))


def test_several_special_tokens_count_in_the_vocabulary():
    tokenizer = train_byte_pairs(TEXTS, vocab_size=300, special_tokens=("<|end|>", "<|user|>"))
    assert tokenizer.vocab_size == 300
    assert (tokenizer.token_bytes() == 0).sum() == 2
    assert tokenizer.decode([tokenizer.end_of_text_id]) == ""


@given(st.text())
@example("")
@example("\r\n\r \u2028\x00 1234567 don't  DON'T\t\t")
@example("a<|end_of_text|>b <|unused_0|>")
def test_text_survives_a_round_trip(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert int(TOKENIZER.token_bytes()[ids].sum()) == len(text.encode())


@given(st.lists(st.text(), max_size=5))
def test_a_batch_is_encoded_as_its_texts_are(texts):
    assert TOKENIZER.encode_batch(texts) == [TOKENIZER.encode(text) for text in texts]


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


def test_a_saved_tokenizer_reads_back_the_same(tmp_path):
    TOKENIZER.save(tmp_path)
    again = BytePairTokenizer((tmp_path / "tokenizer.json").read_text())
    assert again.fingerprint == TOKENIZER.fingerprint
    assert again.encode(TEXTS[3]) == TOKENIZER.encode(TEXTS[3])


def test_other_tools_read_the_same_ids_from_its_json(tmp_path):
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


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=100 cannot hold .*; nearest valid: 257\."):
        train_byte_pairs(TEXTS, vocab_size=100)


def test_a_missing_end_of_text_names_the_special_tokens_there_are():
    with pytest.raises(DataError, match=r"tokenizer\.end_of_text='</s>' .*it has: <\|end_of_text\|>"):
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


def test_words_kept_or_not_have_the_same_ids():
    tokenizer = train_byte_pairs(TEXTS, vocab_size=400)
    before = [tokenizer.encode(text) for text in TEXTS]
    tokenizer.keep_words(0)
    assert [tokenizer.encode(text) for text in TEXTS] == before
