from pathlib import Path

import pytest

from lmtrain.cli.commands.push import push
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.hashed_folder import MANIFEST, damage
from tests import tiny
from tests.interop.test_hub_repository import hub

SECRET = "hf_" + "Ab3dEf9hIj" * 3 + "KlMn"
__all__ = ["hub"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    finished = tiny.train(folder, "budget.steps=4", "run.name=a", "tokenizer.chat=true")
    assert finished.returncode == 0, finished.stderr
    return folder / "runs" / "a"


def sent(hub, words, monkeypatch, capsys) -> dict[str, bytes]:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert push([str(word) for word in words]) == 0
    assert SECRET not in capsys.readouterr().out
    return {path: content for path, content in hub.repositories["me/model"].items() if path != ".gitattributes"}


def test_a_bundle_is_what_others_load_and_the_same_again_sends_nothing(hub, run, tmp_path, monkeypatch, capsys) -> None:
    files = sent(hub, [run, "me/model"], monkeypatch, capsys)
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", MANIFEST} <= set(files)
    assert files["README.md"].decode().count("# a\n") == 1
    for path, content in files.items():
        (tmp_path / path).write_bytes(content)
    assert damage(tmp_path) is None, "every file fits the manifest"
    num_commits = hub.num_commits
    sent(hub, [run, "me/model"], monkeypatch, capsys)
    assert hub.num_commits == num_commits
    assert [path.name for path in (run / ".push").iterdir()] == ["push.lock"]


def test_an_archive_is_the_run_without_its_secrets(hub, run, tmp_path, monkeypatch, capsys) -> None:
    (run / "notes.md").write_text(f"my token is {SECRET}, found in the page of 2026")
    files = sent(hub, [run, "me/model", "--what", "archive"], monkeypatch, capsys)
    (run / "notes.md").unlink()
    assert "checkpoints/step_00000004/state.pt" in files
    assert {"config.yaml", "metrics.jsonl", "run.json", "tokenizer/tokenizer.json"} <= set(files)
    assert files["notes.md"].startswith(b"my token is ")
    assert not any(SECRET.encode() in content for content in files.values())
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert damage(tmp_path) is damage(tmp_path / "checkpoints" / "step_00000004") is None


def test_a_secret_in_a_file_that_must_not_change_stops_it(hub, run, monkeypatch, capsys) -> None:
    from lmtrain.run.stored_runs import exported_models

    monkeypatch.setattr(exported_models, "redact_text", lambda text: text.replace("model", "[redacted]"))
    with pytest.raises(EnvironmentProblem, match="seems to hold a secret, so nothing was sent"):
        sent(hub, [run, "me/model"], monkeypatch, capsys)
    assert hub.repositories == {}


def test_wrong_words_are_refused(run, tmp_path, monkeypatch) -> None:
    with pytest.raises(ConfigurationError, match=r"RUN=.*nowhere must be a run"):
        push([str(tmp_path / "nowhere"), "me/model"])
    with pytest.raises(ConfigurationError, match="model has no owner; write OWNER/NAME"):
        push([str(run), "model"])
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(EnvironmentProblem, match="needs a token of the Hub"):
        push([str(run), "me/model"])
