import socket
import sqlite3
from contextlib import closing

import pytest
from mlflow.server.security_utils import is_allowed_host_header

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.mlflow.ui import runs_page, ui_command


@pytest.fixture
def root(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"")
    return tmp_path


def test_server_is_for_this_machine_only_and_writes_beside_the_runs(root):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = ui_command(root, port=port)
    assert command[command.index("--uvicorn-opts") + 1].startswith("--log-level warning"), (
        "no address after that of the runs"
    )
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == f"sqlite:///{root}/mlflow.db"
    assert command[command.index("--artifacts-destination") + 1] == (root / "mlflow-artifacts").as_uri()


def test_an_address_that_others_reach_is_refused_with_a_way_in(root):
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigurationError, match=rf"--host {host} is reached by others, .* ssh -N -L 5000:127"):
            ui_command(root, host=host)


def test_only_names_of_this_machine_are_answered(root):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    hosts = ui_command(root, port=port)[ui_command(root, port=port).index("--allowed-hosts") + 1].split(",")
    assert [
        host for host in (f"127.0.0.1:{port}", f"localhost:{port}") if not is_allowed_host_header(hosts, host)
    ] == []
    for host in ("10.example.org", f"10.example.org:{port}", f"192.168.example.org:{port}", "example.org", ""):
        assert not is_allowed_host_header(hosts, host)


def test_folder_without_a_store_is_an_environment_problem(tmp_path):
    with pytest.raises(EnvironmentProblem, match="nothing was tracked there"):
        ui_command(tmp_path)


def test_taken_port_is_refused_with_a_free_one(root):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"--port {port} is taken .* nearest valid: \d+\.") as caught:
            ui_command(root, port=port)
    free = int(str(caught.value).rsplit(" ", 1)[1].removesuffix("."))
    assert free > port
    for none, nearest in ((99_999, 65_535), (-5, 1)):
        with pytest.raises(ConfigurationError, match=rf"--port {none} is not within 1 to 65535; .*: {nearest}\."):
            ui_command(root, port=none)


@pytest.mark.parametrize(
    ("names", "page"),
    [
        (["Default", "lmtrain"], "#/experiments/1/runs?workflowType=machine_learning"),
        (["Default", "lmtrain", "other"], "#/experiments?workflowType=machine_learning"),
    ],
)
def test_the_address_is_the_list_of_runs_where_there_is_one(tmp_path, names, page):
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        store.execute("CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT)")
        store.executemany("INSERT INTO experiments VALUES (?, ?, 'active')", enumerate(names))
        store.commit()
    assert runs_page(tmp_path) == page


def test_a_store_that_cannot_be_read_is_told_in_one_line(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"no database at all, and long enough to be looked into")
    with pytest.raises(EnvironmentProblem, match=r"mlflow\.db cannot be read \(file is not a database\)"):
        runs_page(tmp_path)
