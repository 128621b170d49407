import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.planning.stage_plans import planned_preparation
from tests.configs import config_of
from tests.data.documents import make_dataset


def preparation(tmp_path, *words, run_tokens=1_000_000, learns=True):
    config = config_of(f"run.cache={tmp_path}", *words)
    return planned_preparation(config, run_tokens=run_tokens, learns=learns)


def test_a_budget_of_the_data_tells_its_tokens_and_held_out_ones_come_on_top(tmp_path):
    words = ["source=climbmix", "tokenizer.vocab_size=32K", "data.folder.token_budget=6B"]
    found = preparation(tmp_path, *words, "data.folder.validation_fraction=0.1", "data.folder.test_fraction=0.1")
    assert found is not None
    assert found.work.num_tokens == pytest.approx(7.5e9)
    assert found.work.bytes_per_token == 2
    assert found.work.learned_bytes == 256e6
    assert found.reasons[0] == "6.0B tokens to train on: data.folder.token_budget"
    assert found.reasons[-1] == "streamed: of its download, at most 33.2GB, nothing is kept"


def test_files_tell_the_size_of_their_text_before_it_is_read(tmp_path):
    (tmp_path / "notes.txt").write_text("a" * 34_600)
    found = preparation(tmp_path, "source=files", f"source.paths=[{tmp_path / 'notes.txt'}]", learns=False)
    assert found is not None
    assert found.work.text_bytes == 34_600
    assert found.work.learned_bytes == 0
    assert found.reasons[0] == "all of files, of a size known before"


def test_a_text_of_unknown_size_is_told_with_the_run_s_tokens_as_its_bound(tmp_path):
    found = preparation(tmp_path, "source=smoltalk", run_tokens=300_000_000)
    assert found is not None
    assert found.work.train_tokens == 300_000_000
    assert found.work.bytes_per_token == 2 + 1, "a mark of the loss beside each id"
    assert found.reasons[0].startswith("all of smol-smoltalk, of unknown size before its reading")
    assert "data.folder.token_budget=300000000 data.folder.allow_short=true" in found.reasons[0]


def test_prepared_data_and_missing_files_need_no_guess(tmp_path):
    folder = make_dataset(tmp_path / "data", [8, 8]).folder
    assert preparation(tmp_path, "data=shards", f"data.folder.path={folder}") is None
    with pytest.raises(ConfigurationError, match="leave no text to train on"):
        preparation(tmp_path, "data.folder.validation_fraction=0.5", "data.folder.test_fraction=0.5")
    with pytest.raises(DataError, match="nowhere"):
        preparation(tmp_path, "source=files", "source.paths=[nowhere]")
