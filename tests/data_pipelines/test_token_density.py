import sys

import pytest

from data_pipelines.token_density import bytes_per_token, competitor, find_competitor, text_samples
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

BYTES = competitor(ByteLevelTokenizer(), "bytes")


def test_the_samples_cover_the_types_of_text_and_are_text():
    samples = text_samples()
    assert list(samples) == ["prose", "code", "numbers", "other languages", "whitespace"]
    assert all(len(text.encode()) > 200 for text in samples.values())
    assert sum(character.isspace() for character in samples["whitespace"]) > len(samples["whitespace"]) / 2
    assert not samples["other languages"].isascii()


def test_bytes_are_one_to_a_token_and_learned_pairs_more():
    learned = competitor(train_byte_pairs([text_samples()["prose"]] * 9, vocab_size=600), "learned")
    density = bytes_per_token([BYTES, learned], held_out=["aa", "b"])
    assert list(density) == [*text_samples(), "held-out text"]
    assert all(of["bytes"] == 1 for of in density.values())
    assert density["prose"]["learned"] > 2 > density["other languages"]["learned"]


def test_the_density_of_several_texts_is_that_of_them_together():
    counted = competitor(train_byte_pairs(["abab " * 50], vocab_size=258), "x")
    density = bytes_per_token([counted], held_out=["ab" * 5, "c" * 10])
    num_tokens = len(counted_ids("ab" * 5)) + 10
    assert density["held-out text"]["x"] == 20 / num_tokens


def counted_ids(text):
    """Return the ids of the tokenizer above."""
    return train_byte_pairs(["abab " * 50], vocab_size=258).encode(text)


def test_without_held_out_text_there_is_no_row_for_it():
    assert "held-out text" not in bytes_per_token([BYTES], held_out=[])


def test_a_folder_is_a_competitor(tmp_path):
    ByteLevelTokenizer(vocab_size=300).save(tmp_path)
    found = find_competitor(str(tmp_path))
    assert (found.name, found.vocab_size) == (str(tmp_path), 300)
    assert found.count_tokens(["ab", "c"]) == 3


def test_what_is_not_there_is_refused_under_the_name_that_was_typed(tmp_path):
    with pytest.raises(DataError, match=r"compare=\./nothing does not exist here"):
        find_competitor("./nothing")


def test_tiktoken_counts_where_it_is_on_this_machine(monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    made = tiktoken.Encoding("two", pat_str=".", mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: made)
    assert find_competitor("tiktoken:gpt2").count_tokens(["abc", "é"]) == 5


def test_tiktoken_that_cannot_be_had_is_one_line(monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")

    def offline(name):
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(EnvironmentProblem, match="compare=tiktoken:gpt2 is not on this machine"):
        find_competitor("tiktoken:gpt2")
    with pytest.raises(ConfigurationError, match=r"compare=tiktoken:gtp2: tiktoken has .* Did you mean 'gpt2'\?"):
        find_competitor("tiktoken:gtp2")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(EnvironmentProblem, match="pip install tiktoken"):
        find_competitor("tiktoken:gpt2")
