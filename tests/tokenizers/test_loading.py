"""Tokenizers from folders and the hub give every text back."""

import json
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import tokenizers
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from hypothesis import example, given
from hypothesis import strategies as st

from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.tokenizers.bpe import BytePairTokenizer, train_byte_pairs
from lmtrain.tokenizers.loading import find_tokenizer, load_tokenizer
from lmtrain.tokenizers.lossless import make_lossless
from tests.tokenizers import layouts


@pytest.fixture
def foreign(tmp_path):
    """A folder with a tokenizer.json alone, as Hugging Face models have."""
    train_byte_pairs(["text"], vocab_size=300, special_tokens=("<|endoftext|>", "<|user|>")).save(tmp_path)
    (tmp_path / "tokenizer.meta.json").unlink()
    return tmp_path


def test_a_foreign_file_is_searched_for_the_usual_end_of_text(foreign):
    assert load_tokenizer(foreign).end_of_text_id == 0
    assert load_tokenizer(foreign, end_of_text="<|user|>").end_of_text_id == 1


def test_an_unusual_end_of_text_has_to_be_named(foreign):
    path = foreign / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|strange|>"))
    with pytest.raises(DataError, match=r"tokenizer\.end_of_text is not set .*: <\|strange\|>, <\|user\|>"):
        load_tokenizer(foreign)


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (layouts.gpt2, "<|endoftext|>"),
        (layouts.llama_3, "<|end_of_text|>"),  # though its configuration names the end of a turn
        (layouts.qwen, "<|endoftext|>"),
        (layouts.llama_2, "</s>"),
        (layouts.ends_turns, "<eos>"),
    ],
)
def test_the_end_of_a_document_is_found_in_every_layout_of_the_hub(make, end, tmp_path):
    folder = make(tmp_path)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.end_of_text_id == tokenizer.special_tokens[end]
    assert load_tokenizer(folder / "tokenizer.json").fingerprint == tokenizer.fingerprint


ANSWER: Any = SimpleNamespace(status_code=404, headers={}, request=None)  # of whichever client the hub's library uses


@pytest.fixture
def online(monkeypatch, tmp_path):
    """A hub that has one model, `someone/model`, and says what was asked of it."""
    folder = layouts.llama_3(tmp_path / "hub")
    asked: list[str] = []

    def download(name, file, *, revision, local_files_only=False):
        if local_files_only:
            raise LocalEntryNotFoundError("not there")
        asked.append(file)
        if name != "someone/model":
            raise RepositoryNotFoundError("404", response=ANSWER)
        if not (folder / file).is_file():
            raise EntryNotFoundError("404")
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def test_a_name_on_the_hub_is_downloaded_with_what_tells_its_end_of_text(online):
    folder = find_tokenizer("someone/model")
    assert online == ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
    assert load_tokenizer(folder).vocab_size == 361


@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        (GatedRepoError("403", response=ANSWER), EnvironmentProblem, "hf auth login"),
        (EntryNotFoundError("404"), DataError, r"has no tokenizer\.json on the hub; save it with transformers"),
        (OSError("reset"), EnvironmentProblem, "cannot be reached; go online once"),
        (LocalEntryNotFoundError("offline"), EnvironmentProblem, "cannot be reached; go online once"),
    ],
)
def test_what_the_hub_refuses_is_one_line(online, monkeypatch, problem, error, message):
    def refuse(*_, **__):
        raise problem

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(error, match=message) as refusal:
        find_tokenizer("someone/model")
    assert len(str(refusal.value).splitlines()) == 1


SPACES_AND_SYMBOLS = st.text(alphabet=" \u2581<>/s\n\u00a0e\u0301\u180e世\U0001f600|a1")


@pytest.fixture(params=layouts.USABLE, scope="module")
def foreign_lossless(request, tmp_path_factory):
    """The folder of a tokenizer in one of the hub's layouts, and the tokenizer as it is read here."""
    folder = layouts.USABLE[request.param](tmp_path_factory.mktemp(request.param))
    return folder, load_tokenizer(folder)


@given(text=st.text() | SPACES_AND_SYMBOLS)
@example(text=" leading, double  and\ttrailing \n")
@example(text="</s><s><unk> <0x41> ▁▁ <|endoftext|><|eot_id|><|im_end|><|fim_prefix|><tool_call>")
@example(text="e\u0301 decomposed \u212b")
def test_the_bytes_of_a_texts_ids_are_the_texts_bytes(foreign_lossless, text):
    tokenizer = foreign_lossless[1]
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert int(tokenizer.token_bytes()[ids].sum()) == len(text.encode())
    flat, ends = tokenizer.encode_batch_flat([text, "a", text])
    assert flat.tolist() == [*ids, *tokenizer.encode("a"), *ids]
    assert ends.tolist() == [len(ids), len(flat) - len(ids), len(flat)]


def test_the_typed_text_of_a_special_token_never_becomes_its_id(foreign_lossless):
    tokenizer = foreign_lossless[1]
    ids = set(tokenizer.special_tokens.values())
    for name in tokenizer.special_tokens:
        for text in (name, f"a{name}b", f"{name}{name}", f" {name}\n"):
            assert ids.isdisjoint(tokenizer.encode(text)), text
            assert ids.isdisjoint(tokenizer.encode_batch_flat([text])[0].tolist()), text
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_those_of_the_file_where_the_file_loses_nothing(foreign_lossless):
    """The reference is the `tokenizers` library on the untouched file; a space put in front is one id, the first."""
    folder, tokenizer = foreign_lossless
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in layouts.TEXTS[:5]:
        expected = reference.encode(text, add_special_tokens=False).ids
        ids = tokenizer.encode(text)
        if any("in front" in step for step in tokenizer.left_out):
            assert expected[-20:] == ids[-20:]
            assert reference.decode(expected).lstrip(" ") == text
        else:
            assert ids == expected


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


def test_dropout_and_swallowed_white_space_are_left_out():
    content = plain()
    content["model"]["dropout"] = 0.1
    content["added_tokens"].append(layouts.added("<mask>", 300, special=False, lstrip=True))
    made = make_lossless(content)
    assert made.left_out == ("dropout", "the white space that <mask> swallows")
    tokenizer = BytePairTokenizer(json.dumps(content))
    assert tokenizer.decode(tokenizer.encode("a   <mask>")) == "a   <mask>"
    assert np.all([tokenizer.encode(layouts.TEXTS[0]) == tokenizer.encode(layouts.TEXTS[0]) for _ in range(5)])
