from pathlib import Path

import pytest

from lmtrain.cli.commands.prepare import prepare


def test_preparing_prints_the_folder_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data=synthetic", f"data.folder.root={tmp_path}", "tokenizer=byte_level", "data.folder.num_tokens=1K"]
    assert prepare(words) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.parent == tmp_path
    assert (folder / "dataset.json").is_file()
