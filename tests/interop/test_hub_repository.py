import pytest
from huggingface_hub import constants

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop import hub_repository
from lmtrain.interop.hub_repository import require_repository, send_folder
from lmtrain.storage.hashed_folder import write_atomically
from tests.interop.hub_stand_in import StandIn


@pytest.fixture
def hub(monkeypatch):
    server = StandIn()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # of this machine alone
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield server
    server.shutdown()
    server.server_close()


def fill(folder, **contents):
    def write(aside):
        for name, content in contents.items():
            path = aside / name.replace("__", "/").replace("_pt", ".pt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    write_atomically(folder, facts={}, write=write)
    return folder


def there(hub, name="me/model"):
    return {path: content.decode() for path, content in hub.repositories[name].items() if path != ".gitattributes"}


def of(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_repository_becomes_equal_to_the_folder_and_the_same_again_sends_nothing(hub, tmp_path):
    folder = fill(tmp_path / "f", card="one", checkpoints__step_1__state_pt="weights")
    sent = send_folder(folder, "me/model", token="t", message="m")
    assert (sent.num_sent, sent.num_there) == (3, 0)
    assert there(hub) == of(folder)
    num_commits = hub.num_commits
    again = send_folder(folder, "me/model", token="t", message="m")
    assert (again.num_sent, again.num_there, hub.num_commits) == (0, 3, num_commits)
    newer = fill(tmp_path / "g", card="two", checkpoints__step_2__state_pt="weights")
    uploads = len(hub.uploads)
    sent = send_folder(newer, "me/model", token="t", message="m")
    assert there(hub) == of(newer)
    assert len(hub.uploads) == uploads, "the same weights under another name travel no second time"
    assert hub.tokens == {"Bearer t"}


def test_a_push_that_was_stopped_sends_no_large_file_again(hub, tmp_path):
    folder = fill(tmp_path / "f", a="1", c_pt="3")
    hub.most_commits = 0
    with pytest.raises(EnvironmentProblem, match="me/model: the Hub answered 500; the same command goes on from here"):
        send_folder(folder, "me/model", token="t", message="m")
    assert there(hub) == {}
    hub.most_commits, num_uploads = None, len(hub.uploads)
    send_folder(folder, "me/model", token="t", message="m")
    assert (there(hub), len(hub.uploads)) == (of(folder), num_uploads)


def test_a_refusal_and_an_absent_hub_are_told_without_the_token(hub, tmp_path, monkeypatch):
    folder = fill(tmp_path / "f", a="1")
    hub.refusal = 403
    with pytest.raises(EnvironmentProblem, match="the token may not write there") as refused:
        send_folder(folder, "me/model", token="very-secret", message="m")
    assert "very-secret" not in str(refused.value)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentProblem, match="the Hub cannot be reached"):
        send_folder(folder, "me/model", token="t", message="m")


def test_a_name_and_a_token_are_asked_for(monkeypatch):
    monkeypatch.setattr(hub_repository, "get_token", lambda: None)
    for name, said in (
        ("me", "OWNER/NAME"),
        ("a/b/c", "OWNER/NAME"),
        ("a b/c", "OWNER/NAME"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            require_repository(name)
    with pytest.raises(EnvironmentProblem, match="set HF_TOKEN, or log in with `hf auth login`"):
        require_repository("me/model")
