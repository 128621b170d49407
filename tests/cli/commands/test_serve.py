import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from lmtrain.cli.commands import serve as verb
from lmtrain.errors import EXIT_TERMINATED, ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import install_command
from tests import tiny
from tests.interop.hugging_face import saved


def test_a_key_is_needed_where_others_reach_the_server(tmp_path):
    assert verb.read_key(None, host="127.0.0.1") is None
    assert verb.read_key(None, host="::1") is None
    with pytest.raises(ConfigurationError, match=r"--host 0.0.0.0 is reached by others, and there is no key"):
        verb.read_key(None, host="0.0.0.0")
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(ConfigurationError, match="no key of 16 characters"):
        verb.read_key(tmp_path / "key", host="0.0.0.0")
    (tmp_path / "key").write_text("a-key-of-sixteen-characters\n")
    assert verb.read_key(tmp_path / "key", host="0.0.0.0") == "a-key-of-sixteen-characters"


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=re.escape(install_command("serve"))):
        verb.serve(["runs/x"])


def test_sigterm_before_anything_is_served_has_its_exit_code(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(verb, "require_model", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as stopped:
        verb.serve(["runs/x"])
    assert stopped.value.code == EXIT_TERMINATED
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_an_answer_that_has_begun_is_finished_after_sigterm(tmp_path):
    saved("llama", tmp_path, max_position_embeddings=2048)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "lmtrain.cli", "serve", str(tmp_path), "--port", str(port), "--device", "cpu"],
        env=tiny.environment(),
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            ends = time.monotonic() + 60
            while not _is_up(client):
                assert time.monotonic() < ends
                time.sleep(0.1)
            body = {"prompt": "ab", "max_tokens": 300, "stream": True, "logit_bias": {"256": -100}}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"finish_reason": "length"' in rest[-2]
        assert process.wait(30) == 0
    finally:
        process.kill()


def _is_up(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.ConnectError:
        return False
