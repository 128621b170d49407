import json
import re

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from lmtrain.errors import DataError
from lmtrain.tokenizers.bpe import BytePairTokenizer, train_byte_pairs
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.lossless import cut_at, make_lossless
from tests.tokenizers import layouts

SPACES_AND_SYMBOLS = st.text(alphabet=" \u2581<>/s\n\u00a0e\u0301\u180e世\U0001f600|a1")


@pytest.fixture(params=layouts.USABLE, scope="module")
def foreign(request, tmp_path_factory):
    """The folder of a tokenizer in one of the hub's layouts, and the tokenizer as it is read here."""
    folder = layouts.USABLE[request.param](tmp_path_factory.mktemp(request.param))
    return folder, load_tokenizer(folder)


@given(text=st.text() | SPACES_AND_SYMBOLS)
@example(text=" leading, double  and\ttrailing \n")
@example(text="</s><s><unk> <0x41> ▁▁ <|endoftext|><|eot_id|><|im_end|><|fim_prefix|><tool_call>")
@example(text="e\u0301 decomposed \u212b")
def test_the_bytes_of_a_texts_ids_are_the_texts_bytes(foreign, text):
    tokenizer = foreign[1]
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert int(tokenizer.token_bytes()[ids].sum()) == len(text.encode())
    flat, ends = tokenizer.encode_batch_flat([text, "a", text])
    assert flat.tolist() == [*ids, *tokenizer.encode("a"), *ids]
    assert ends.tolist() == [len(ids), len(flat) - len(ids), len(flat)]


def test_special_tokens_count_no_bytes_and_byte_entries_one(foreign):
    tokenizer = foreign[1]
    counts = tokenizer.token_bytes()
    assert all(counts[id_] == 0 for id_ in tokenizer.special_tokens.values())
    pieces = tokenizer.bytes_of_ids()
    assert {bytes([byte]) for byte in range(256)} <= set(pieces)
    assert len(counts) == tokenizer.vocab_size == max(map(len, [pieces]))


def test_the_typed_text_of_a_special_token_never_becomes_its_id(foreign):
    tokenizer = foreign[1]
    ids = set(tokenizer.special_tokens.values())
    for name in tokenizer.special_tokens:
        for text in (name, f"a{name}b", f"{name}{name}", f" {name}\n"):
            assert ids.isdisjoint(tokenizer.encode(text)), text
            assert ids.isdisjoint(tokenizer.encode_batch_flat([text])[0].tolist()), text
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_those_of_the_file_where_the_file_loses_nothing(foreign):
    """The reference is the `tokenizers` library on the untouched file; a space put in front is one id, the first."""
    folder, tokenizer = foreign
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in layouts.TEXTS[:5]:
        expected = reference.encode(text, add_special_tokens=False).ids
        ids = tokenizer.encode(text)
        if any("in front" in step for step in tokenizer.left_out):
            assert expected[-20:] == ids[-20:]
            assert reference.decode(expected).lstrip(" ") == text
        else:
            assert ids == expected


def test_a_saved_foreign_tokenizer_gives_the_same_ids(foreign, tmp_path):
    tokenizer = foreign[1]
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.end_of_text_id == tokenizer.end_of_text_id
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert reference.encode(layouts.TEXTS[7], add_special_tokens=False).ids == again.encode(layouts.TEXTS[7])


def test_what_is_left_out_of_a_file_is_told(tmp_path):
    told = {name: load_tokenizer(make(tmp_path / name)).left_out for name, make in layouts.USABLE.items()}
    front = ("the space put in front of a text",)
    assert told == {"gpt2": (), "llama_3": (), "qwen": ("NFC",), "llama_2": front, "mistral": front, "gemma": ()}


def test_control_tokens_are_special_whatever_the_file_says(tmp_path):
    tokenizer = load_tokenizer(layouts.qwen(tmp_path))
    assert "<|fim_prefix|>" in tokenizer.special_tokens
    assert "<tool_call>" not in tokenizer.special_tokens


def plain() -> dict:
    """The content of a tokenizer that loses nothing."""
    tokenizer = train_byte_pairs(layouts.TEXTS, vocab_size=300)
    return json.loads(tokenizer._tokenizer.to_str())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(normalizer={"type": "Lowercase"}), "changes the text .*Lowercase"),
        (lambda it: it.update(normalizer={"type": "NFKC"}), "changes the text .*NFKC"),
        (lambda it: it["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "WhitespaceSplit"}), "between words"),
        (lambda it: it["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix='</w>'"),
        (lambda it: it["model"].update(type="Unigram"), "model of type Unigram: only byte-pair"),
        (lambda it: it["model"]["vocab"].pop("Ā"), r"no entry for 1 of the 256 bytes \(0x00"),
        (lambda it: it.update(pre_tokenizer=None), "neither byte-level nor"),
    ],
)
def test_a_file_that_loses_text_is_refused_with_the_reason(change, message):
    content = plain()
    change(content)
    with pytest.raises(DataError, match=message):
        make_lossless(content)


def test_word_pieces_are_refused_with_the_reason_and_the_fix(tmp_path):
    with pytest.raises(DataError, match=r"WordPiece: it cuts text into words.*Use a byte-level.*tokenizer=bpe\."):
        load_tokenizer(layouts.word_piece(tmp_path), end_of_text="[SEP]")


def test_dropout_and_swallowed_white_space_are_left_out():
    content = plain()
    content["model"]["dropout"] = 0.1
    content["added_tokens"].append(layouts.added("<mask>", 300, special=False, lstrip=True))
    made = make_lossless(content)
    assert made.left_out == ("dropout", "the white space that <mask> swallows")
    tokenizer = BytePairTokenizer(json.dumps(content))
    assert tokenizer.decode(tokenizer.encode("a   <mask>")) == "a   <mask>"
    assert np.all([tokenizer.encode(layouts.TEXTS[0]) == tokenizer.encode(layouts.TEXTS[0]) for _ in range(5)])


def test_a_text_is_cut_inside_every_match():
    pieces: list[str] = []
    cut_at(re.compile("<s>|</s>"), "a<s></s>b", encode=lambda text: pieces.append(text) or [])
    assert pieces == ["a<", "s><", "/s>b"]
