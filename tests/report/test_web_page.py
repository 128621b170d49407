import pytest

from lmtrain.report.web_page import MAX_COLUMNS, columns, tiles
from tests.report.test_markup import Reader


@pytest.mark.parametrize("num_tiles", range(2, 21))
def test_no_tile_stands_alone_in_the_last_row(num_tiles):
    beside = columns(num_tiles)
    assert 1 < beside <= MAX_COLUMNS
    assert (num_tiles - 1) % beside + 1 > 1


def test_a_tile_is_a_value_over_its_name():
    page = Reader(tiles([("steps", "20"), ("tokens", "<b>")]))
    assert page.text == "20steps<b>tokens"
    assert page.tags[0][1]["style"] == "--columns:2"
    assert columns(0) == columns(1) == 1
