import pytest

from lmtrain.cli.commands.sync import sync
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.status import Tracked


def test_sync_of_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="not a run folder"):
        sync([str(tmp_path)])


def test_sync_prints_one_json_object(tmp_path, monkeypatch, capsys):
    asked = []

    def replay(run_folder, *, tracking_uri):
        asked.append((run_folder, tracking_uri))
        return Tracked(run_id="abc", is_complete=True)

    monkeypatch.setattr("lmtrain.cli.commands.sync.sync_run", replay)
    assert sync([str(tmp_path), "--tracking-uri", "http://h:5000", "--json"]) == 0
    assert asked == [(tmp_path, "http://h:5000")]
    assert capsys.readouterr().out == '{"run_id": "abc", "is_complete": true}\n'
