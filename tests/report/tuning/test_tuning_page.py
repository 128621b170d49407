from pathlib import Path

from lmtrain.report.markup import tag
from lmtrain.report.tuning.tuning_page import write_tuning_page


def test_a_page_is_named_after_the_words_in_any_order_and_shows_no_secret(tmp_path: Path) -> None:
    words = ["model=nano", "logger.api_key=c4nary"]
    path = write_tuning_page("lr", "A title", tag("p", "found"), folder=tmp_path / "new", words=words)
    assert path == write_tuning_page("lr", "A title", folder=tmp_path / "new", words=words[::-1])
    assert path != write_tuning_page("ladder", "A title", tag("p", "found"), folder=tmp_path / "new", words=words)
    assert "model=nano" in path.read_text()
    assert "c4nary" not in path.read_text()
    assert "the defaults" in write_tuning_page("lr", "A title", folder=tmp_path, words=[]).read_text()
