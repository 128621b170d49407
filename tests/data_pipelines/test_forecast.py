import pytest

from data_pipelines.forecast import forecast
from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.data_pipelines.poems import Poems, make, question


def tell(tmp_path, *, source=None, token_budget=100_000, num_documents=50, allow_short=False):
    asked = question(source=source or Poems(10_000), token_budget=token_budget)
    forecast(asked, ByteLevelTokenizer(), num_documents=num_documents, folder=tmp_path, allow_short=allow_short)


def test_documents_time_and_disk_are_told(tmp_path, capsys):
    tell(tmp_path)
    told = capsys.readouterr().err
    assert "sample" in told
    assert "median" in told
    assert "free disk" in told


def test_a_source_that_the_sample_shows_to_be_short_is_refused_before_the_work(tmp_path):
    with pytest.raises(DataError, match=r"100,000, but the source has about [\d,]+ tokens"):
        tell(tmp_path, source=Poems(20))
    tell(tmp_path, source=Poems(20), allow_short=True)


@pytest.mark.parametrize("settings", [{"token_budget": None}, {"num_documents": 0}])
def test_without_a_budget_or_a_sample_nothing_is_read(tmp_path, settings):
    class Unread(Poems):
        def documents(self):
            pytest.fail("read")

    tell(tmp_path, source=Unread(), **settings)


def test_a_build_with_a_budget_tells_it_once(tmp_path, capsys):
    make(tmp_path / "data", source=Poems(500), token_budget=20_000, sample_documents=50)
    assert capsys.readouterr().err.count("median") == 1
