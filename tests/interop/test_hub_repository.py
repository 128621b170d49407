"""What `send_folder` asks of the Hub's client, and what it says of each answer."""

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop import hub_repository
from lmtrain.interop.hub_repository import HTTP_PROBLEM, require_repository, send_folder


class Hub:
    """Files by path of each repository, in the place of HfApi; `refusal` is the error of every request."""

    def __init__(self):
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.refusal: Exception | None = None

    def __call__(self, *, token):
        self.token = token
        return self

    def create_repo(self, name, *, private, exist_ok):
        assert private
        assert exist_ok
        if self.refusal:
            raise self.refusal
        self.repositories.setdefault(name, {".gitattributes": b""})

    def upload_folder(self, *, repo_id, folder_path, commit_message, delete_patterns):
        assert delete_patterns == "*"
        files = {str(path.relative_to(folder_path)): path.read_bytes() for path in folder_path.rglob("*.*")}
        self.repositories[repo_id] = {".gitattributes": b"", **files}

    def list_repo_tree(self, name, *, recursive):
        files = self.repositories[name].items()
        return [RepoFile(path=path, size=len(data), oid=hashlib.sha1(data).hexdigest()) for path, data in files]


@pytest.fixture
def hub(monkeypatch):
    one = Hub()
    monkeypatch.setattr(hub_repository, "HfApi", one)
    return one


def test_a_repository_becomes_equal_to_the_folder_and_what_is_sent_is_counted(hub, tmp_path):
    (tmp_path / "card.md").write_text("one")
    (tmp_path / "state.pt").write_text("weights")
    sent = send_folder(tmp_path, "me/model", token="t", message="m")
    assert (sent.num_sent, sent.num_bytes, sent.num_there) == (2, 10, 0)
    (tmp_path / "card.md").write_text("other")
    sent = send_folder(tmp_path, "me/model", token="t", message="m")
    assert (sent.num_sent, sent.num_bytes, sent.num_there) == (1, 5, 1)
    assert hub.repositories["me/model"].keys() == {".gitattributes", "card.md", "state.pt"}


def answer(status):
    response: Any = SimpleNamespace(status_code=status, headers={}, request=None)
    return HfHubHTTPError("no", response=response)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (answer(403), "the token may not write there"),
        (answer(500), "me/model: the Hub answered 500; the same command goes on from here"),
        (HTTP_PROBLEM("no"), "the Hub cannot be reached"),
    ],
)
def test_a_refusal_and_an_absent_hub_are_reported_without_the_token(hub, tmp_path, problem, message):
    hub.refusal = problem
    with pytest.raises(EnvironmentProblem, match=message) as refused:
        send_folder(tmp_path, "me/model", token="very-secret", message="m")
    assert "very-secret" not in str(refused.value)


def test_a_name_and_a_token_are_asked_for(monkeypatch):
    monkeypatch.setattr(hub_repository, "get_token", lambda: None)
    for name in ("me", "a/b/c", "a b/c"):
        with pytest.raises(ConfigurationError, match="OWNER/NAME"):
            require_repository(name)
    with pytest.raises(EnvironmentProblem, match="set HF_TOKEN, or log in with `hf auth login`"):
        require_repository("me/model")
