import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.gate import check as gate_check
from lmtrain.run.validators.tokenizer_size import require_size_for_model
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.configs import config_of

TEXT = "A line of text to learn from, and another; 12 words or so.\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder with some text and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 200)
    ByteLevelTokenizer(vocab_size=300).save(tmp_path / "bytes")


@pytest.mark.parametrize("check", [require_size_for_model, lambda config: gate_check(config.values)])
def test_a_model_that_follows_an_unknown_size_is_told_it(check):
    config = config_of("tokenizer=folder", "tokenizer.path=bytes")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=null, but model\.vocab_size follows .*=300\."):
        check(config)


def test_a_model_that_is_told_the_size_or_has_its_own_is_left_alone():
    words = ["tokenizer=folder", "tokenizer.path=bytes"]
    require_size_for_model(config_of(*words, "tokenizer.vocab_size=300"))
    require_size_for_model(config_of(*words, "model.vocab_size=300"))
