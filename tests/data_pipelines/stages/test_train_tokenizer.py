import pytest

from data_pipelines.stages.train_tokenizer import ByteLevelSpec, BytePairSpec, FolderSpec, HuggingFaceSpec
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.special_tokens import CHAT_TOKENS

TEXTS = ["the same words again and again, " * 20, "and again the same words\n" * 20]


def no_texts():
    """Texts that nobody may read."""
    pytest.fail("the texts were read")
    yield ""


def test_byte_pairs_are_learned_to_the_vocabulary_asked_for():
    spec = BytePairSpec(vocab_size=270, special_tokens=["<|end|>", "<|user|>"])
    tokenizer = spec.build(TEXTS)
    assert tokenizer.vocab_size == spec.vocab_size == 270
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0])
    assert tokenizer.fingerprint == spec.build(iter(TEXTS)).fingerprint


def test_bytes_need_no_text():
    spec = ByteLevelSpec(vocab_size=260)
    assert spec.build(no_texts()).vocab_size == spec.vocab_size == 260


def test_a_folder_gives_the_tokenizer_it_holds(tmp_path):
    ByteLevelTokenizer().save(tmp_path)
    tokenizer = FolderSpec(path=str(tmp_path), vocab_size=257).build(no_texts())
    assert tokenizer.fingerprint == ByteLevelTokenizer().fingerprint


def test_a_wrong_vocabulary_size_is_answered_with_the_right_one(tmp_path):
    ByteLevelTokenizer().save(tmp_path)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=300 is not the size .*; valid: 257\."):
        FolderSpec(path=str(tmp_path), vocab_size=300).build([])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.path=.* has no tokenizer\.json"):
        FolderSpec(path=str(tmp_path), vocab_size=300).fingerprint_parts()


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        (BytePairSpec(vocab_size=300), BytePairSpec(vocab_size=301)),
        (BytePairSpec(vocab_size=300), BytePairSpec(vocab_size=300, sample_bytes=5)),
        (BytePairSpec(vocab_size=300), BytePairSpec(vocab_size=300, special_tokens=["<|end|>"])),
        (ByteLevelSpec(vocab_size=300), BytePairSpec(vocab_size=300)),
    ],
)
def test_what_decides_the_tokenizer_is_in_its_fingerprint(spec, other):
    assert spec.fingerprint_parts() == spec.fingerprint_parts()
    assert spec.fingerprint_parts() != other.fingerprint_parts()


def test_the_fingerprint_of_a_folder_follows_its_file(tmp_path):
    ByteLevelTokenizer().save(tmp_path)
    spec = FolderSpec(path=str(tmp_path), vocab_size=257)
    before = spec.fingerprint_parts()
    ByteLevelTokenizer(vocab_size=258).save(tmp_path)
    assert spec.fingerprint_parts() != before


def test_a_vocabulary_without_room_is_refused_before_any_text_is_read():
    with pytest.raises(
        ConfigurationError, match=r"tokenizer\.vocab_size=257 cannot .* 2 special tokens; nearest valid: 258"
    ):
        BytePairSpec(vocab_size=257, special_tokens=["<|end|>", "<|user|>"])
    with pytest.raises(ConfigurationError, match=r"tokenizer\.special_tokens=\[\] has none that ends a document"):
        BytePairSpec(vocab_size=300, special_tokens=[])
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=100"):
        ByteLevelSpec(vocab_size=100)


def test_chat_adds_its_tokens_within_the_vocabulary():
    tokenizer = BytePairSpec(vocab_size=280, chat=True).build(TEXTS)
    assert tokenizer.vocab_size == 280
    assert set(CHAT_TOKENS) <= set(tokenizer.special_tokens)
    assert set(CHAT_TOKENS) <= set(ByteLevelSpec(vocab_size=267, chat=True).build([]).special_tokens)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=266 cannot hold .* nearest valid: 267"):
        BytePairSpec(vocab_size=266, chat=True)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=266 cannot hold .*chat=true.*: 267"):
        ByteLevelSpec(vocab_size=266, chat=True)


def test_an_end_of_text_is_needed_beside_the_tokens_of_conversations():
    with pytest.raises(ConfigurationError, match=r"special_tokens=\[\] has none that ends a document"):
        BytePairSpec(vocab_size=300, special_tokens=[], chat=True)


@pytest.mark.parametrize("tokens", [["<|a|>", "<|a|>"], ["<|end|>", "x"]])
def test_special_tokens_that_could_not_be_are_refused(tokens):
    with pytest.raises(ConfigurationError, match=r"tokenizer\.special_tokens: '.*' is .*; leave it out"):
        BytePairSpec(vocab_size=300, special_tokens=tokens)


def test_a_size_that_is_not_told_is_the_tokenizers_own(tmp_path):
    ByteLevelTokenizer(vocab_size=300).save(tmp_path)
    assert FolderSpec(path=str(tmp_path)).vocab_size == 300
    spec = HuggingFaceSpec(name=str(tmp_path))
    assert spec.vocab_size == 300
    assert spec.build(no_texts()).fingerprint == ByteLevelTokenizer(vocab_size=300).fingerprint


def test_a_found_name_is_the_folder_that_it_was_found_in(tmp_path):
    ByteLevelTokenizer().save(tmp_path)
    folder = FolderSpec(path=str(tmp_path), vocab_size=257)
    assert HuggingFaceSpec(name=str(tmp_path), vocab_size=257).fingerprint_parts() == folder.fingerprint_parts()
    assert FolderSpec(path=str(tmp_path / "tokenizer.json"), end_of_text="<|end_of_text|>").vocab_size == 257
