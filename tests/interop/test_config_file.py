from pathlib import Path

import pytest

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.interop.config_file import CONFIG, read_config_file


def test_a_config_is_read(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"model_type": "llama"}')
    assert read_config_file(tmp_path) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("content", "said", "code"),
    [("{", "is no JSON", 4), ("[]", "is not an object", 4), (None, "has no config.json", 4)],
)
def test_a_damaged_config_is_refused(tmp_path: Path, content: str | None, said: str, code: int) -> None:
    if content is not None:
        (tmp_path / CONFIG).write_text(content)
    with pytest.raises(LMTRAIN_ERRORS, match=said) as refused:
        read_config_file(tmp_path)
    assert refused.value.exit_code == code


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LMTRAIN_ERRORS, match=r"FOLDER=.*nowhere is not a folder") as refused:
        read_config_file(tmp_path / "nowhere")
    assert refused.value.exit_code == 2
