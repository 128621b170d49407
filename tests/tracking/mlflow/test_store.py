"""The store: its address and its server."""

import socket

import pytest
from mlflow.server.security_utils import is_allowed_host_header

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.mlflow.client import check_uri
from lmtrain.tracking.mlflow.ui import ui_command


@pytest.mark.parametrize("uri", ["file:./mlruns", "mlruns", "redis://me:canary@h"])
def test_store_that_cannot_resume_is_refused_without_its_password(uri):
    with pytest.raises(ConfigurationError, match=r"logger.tracking_uri") as caught:
        check_uri(uri)
    assert "canary" not in str(caught.value)


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
