from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import DataError
from lmtrain.run.compose.file_values import tokenizer_words, value_words
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

FILE = Path("facts.json")


def test_each_value_is_an_override_under_its_whole_key() -> None:
    settings = {"_target_": "lmtrain.models.llama.Llama", "rope": {"factor": 8.0}, "windows": [4, None], "on": True}
    assert value_words("model", settings, source=FILE) == [
        "++model._target_=lmtrain.models.llama.Llama",
        "++model.rope.factor=8.0",
        "++model.windows=[4,null]",
        "++model.on=true",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (None, "facts.json has no settings of model"),
        ({"a": "${oc.env:HOME}"}, "model.a="),
        ({"a": {"b": ["x y"]}}, "model.a.b='x y' is no setting"),
        ({"a.b": 1}, "model has the setting 'a.b', which is no name"),
        ({"a=1,b": 1}, "which is no name"),
    ],
)
def test_what_is_no_plain_value_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(DataError, match=r"facts\.json") as refused:
        value_words("model", settings, source=FILE)
    assert said in str(refused.value)


def test_a_tokenizer_is_named_by_its_quoted_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b"
    assert tokenizer_words(folder) == []
    ByteLevelTokenizer(vocab_size=300).save(folder)
    quoted = str(folder).replace("'", "\\'")
    assert tokenizer_words(folder) == ["tokenizer=folder", f"tokenizer.path='{quoted}'", "tokenizer.vocab_size=300"]
