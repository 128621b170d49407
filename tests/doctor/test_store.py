import os
import socket

import pytest

from lmtrain.doctor.store import answers, database, tracking_store


def test_a_server_that_listens_answers_and_one_that_does_not_is_bad():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers("127.0.0.1", port)
        assert tracking_store(f"http://127.0.0.1:{port}").state == "ok"
    silent = tracking_store(f"http://me:secret@127.0.0.1:{port}")
    assert silent.state == "bad"
    assert "lmtrain sync" in silent.fix
    assert "secret" not in silent.found


def test_a_database_is_written_beside_its_file(tmp_path):
    assert tracking_store(f"sqlite:///{tmp_path / 'mlflow.db'}").state == "ok"
    assert database(tmp_path / "a" / "b.db").state == "ok"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_others_is_bad(tmp_path):
    tmp_path.chmod(0o500)
    assert database(tmp_path / "b.db").state == "bad"


def test_a_store_without_a_port_is_not_tried():
    assert "not tried" in tracking_store("databricks").found
