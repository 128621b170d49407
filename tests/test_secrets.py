"""Real runs with secrets in settings, environment and repository: nothing that they leave or say has one."""

import os
import subprocess
from pathlib import Path

import pytest

from lmtrain.report.run_page import write_report
from lmtrain.run.stored_runs.exported_models import make_push_folder
from tests import forked, tiny

DRAIN = "logger.drain_seconds=1"
ALARM = "c4nary"  # a part of every secret below
IN_SETTINGS = {
    "STORE_PASSWORD": "c4nary-password-of-store",  # its name says it
    "PLACE_OF_PROMPT": "c4nary-that-a-config-refers-to",  # what refers to it does
}
IN_ENVIRONMENT = {**IN_SETTINGS, "UNUSED_API_KEY": "c4nary-of-no-known-form"}
TYPED = "c4nary-typed/with@odd:signs"
IN_DIFF = (
    "hf_c4naryCANARYc4naryCANARYc4nary",
    "Authorization: Bearer c4nary-bearer-c4nary",
    "aws AKIA" + "C4NARY0123456789",
    "export WANDB_API_KEY=c4nary",
    "copy of " + IN_ENVIRONMENT["UNUSED_API_KEY"],
    "postgresql://me:c4nary@host/db",
    "-----BEGIN PRIVATE KEY-----",
    *["MIIEc4naryBAAKCAQEAc4nary0123456789c4nary"] * 3,
    "-----END PRIVATE KEY-----",
)
HARMLESS = ("sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "tokens_per_step=256")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a repository with changes that hold secrets."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("lr: 1\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    for words in (("init",), ("add", "notes.txt"), (*identity, "commit", "-m", "one")):
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    (folder / "notes.txt").write_text("\n".join([*HARMLESS, *IN_DIFF, ""]))
    return folder


def train(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [word for word in tiny.TINY if word != "logger=none"]
    more = ["budget.tokens=512", "run.name=a", "callbacks.text_samples.prompt=a ${oc.env:PLACE_OF_PROMPT}"]
    environment = {**tiny.environment(), **IN_ENVIRONMENT}
    return forked.run(tiny.PROJECT / "train.py", [*line, *words, *more], folder=project, environment=environment)


def leaks(folder: Path, done: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return every file below a folder, and every stream, in which a canary stands, and every path with one."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "notes.txt"]
    assert len(files) > 20
    found = [str(path.relative_to(folder)) for path in files if ALARM.encode() in path.read_bytes().lower()]
    found += [str(path) for path in folder.rglob("*") if ALARM in str(path.relative_to(folder)).lower()]
    return found + [name for name in ("stdout", "stderr") if ALARM in getattr(done, name).lower()]


@pytest.mark.slow
def test_a_run_with_a_store_leaves_no_secret_anywhere(project: Path) -> None:
    store = f"sqlite:///{project}/store/mlflow.db"
    done = train(project, f"logger.tracking_uri='{store}?password={TYPED}'", DRAIN)
    assert done.returncode == 0, done.stderr
    assert leaks(project, done) == []
    (artifact,) = project.glob("store/mlflow-artifacts/*/artifacts/attempts/1/git.diff")
    assert all(f"+{line}\n" in artifact.read_text() for line in HARMLESS)
    config = (project / "runs/a/attempts/1/config.yaml").read_text()
    assert "prompt: a ${oc.env:PLACE_OF_PROMPT}" in config


@pytest.mark.slow
@pytest.mark.distributed
def test_a_sweep_on_two_ranks_and_a_dead_server_leaves_no_secret_anywhere(project: Path) -> None:
    uri, experiment = f"http://me:{TYPED}@127.0.0.1:9", "a-${oc.env:STORE_PASSWORD}"
    done = train(
        project, "-m", "trainer.devices=2", f"logger.tracking_uri='{uri}'", f"logger.experiment={experiment}", DRAIN
    )
    assert done.returncode == 0, done.stderr
    assert "MLflow lacks a part of this run" in done.stderr
    (log,) = (project / "runs").rglob("mlflow.log")
    assert "127.0.0.1" in log.read_text()
    assert leaks(project, done) == []


@pytest.mark.slow
@pytest.mark.parametrize("uri", [f"ftp://me:{TYPED}@h", "ftp://me:${oc.env:STORE_PASSWORD}@h"])
def test_a_refused_address_is_told_without_its_password(project: Path, uri: str) -> None:
    done = train(project, f"logger.tracking_uri='{uri}'", DRAIN)
    assert done.returncode == 2
    assert "must begin with one of" in done.stderr
    assert ALARM not in done.stdout + done.stderr


def test_the_canaries_are_where_this_file_says(project: Path) -> None:
    assert all(ALARM in value for value in (*IN_ENVIRONMENT.values(), TYPED))
    assert ALARM in (project / "notes.txt").read_text()
    assert not IN_ENVIRONMENT.keys() & os.environ.keys()


@pytest.mark.slow
@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_the_other_trackers_the_page_and_what_is_pushed_hold_no_secret(
    project: Path, logger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = train(project, f"logger={logger}", *(["logger.mode=offline"] if logger == "wandb" else []))
    assert done.returncode == 0, done.stderr
    for name, value in IN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    write_report(project / "runs/a")
    make_push_folder(project / "runs/a")
    assert leaks(project, done) == []
