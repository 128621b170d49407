import json
import subprocess

import pytest

from lmtrain.tracking import git_checkout
from lmtrain.tracking.git_checkout import describe_git
from lmtrain.tracking.machine import describe_environment


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-b", "trunk")
    (tmp_path / "a.yaml").write_text("lr: 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    return tmp_path


def test_clean_repository_has_a_commit_and_no_diff(repository):
    state = describe_git(repository)
    assert state.commit is not None
    assert len(state.commit) == 40
    assert (state.branch, state.dirty, state.diff) == ("trunk", False, "")


def test_diff_holds_no_secret_of_a_known_form_and_keeps_hashes(repository, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "c4nary-of-the-environment")
    kept = ["sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "tokens_per_step: 256"]
    secrets = ["hf_c4naryCANARYc4nary01", "Bearer c4nary-c4nary", "c4nary-of-the-environment", "AKIAC4NARY0123456789"]
    (repository / "a.yaml").write_text("\n".join([*kept, *secrets, ""]))
    diff = describe_git(repository).diff
    assert "c4nary" not in diff.lower()
    assert all(f"+{line}\n" in diff for line in kept)


def test_cut_leaves_no_half_of_a_secret(repository, monkeypatch):
    (repository / "a.yaml").write_text(f"{'x' * 50}\nhf_c4naryCANARYc4nary01\n" * 100)
    for length in range(500, 580):
        monkeypatch.setattr(git_checkout, "MAXIMUM_DIFF_CHARACTERS", length)
        assert "c4n" not in describe_git(repository).diff


def test_a_folders_own_git_settings_run_no_program(repository, tmp_path_factory):
    """Monitors, hooks, filters, converters and external diffs are commands that a config file names."""
    marker = tmp_path_factory.mktemp("marker") / "ran"
    script = repository / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    script.chmod(0o755)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil\n")
    keys = ["core.fsmonitor", "core.sshCommand", "core.pager", "diff.external", "diff.evil.textconv"]
    keys += ["diff.evil.command", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process"]
    for key in keys:
        subprocess.run(["git", "-C", str(repository), "config", key, str(script)], check=True)
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
        (repository / ".git" / "hooks" / hook).write_bytes(script.read_bytes())
        (repository / ".git" / "hooks" / hook).chmod(0o755)
    (repository / "a.yaml").write_text("lr: 3\n")
    state = describe_git(repository)
    assert not marker.exists()
    assert (state.branch, state.dirty) == ("trunk", True)
    assert "+lr: 3" in state.diff


def test_a_further_working_tree_a_packed_branch_and_a_detached_head_are_read(repository, tmp_path_factory):
    commit = describe_git(repository).commit
    tree = tmp_path_factory.mktemp("trees") / "other"
    for words in (["pack-refs", "--all"], ["worktree", "add", "--detach", str(tree)]):
        subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True)
    assert describe_git(repository).commit == commit
    state = describe_git(tree)
    assert (state.commit, state.branch, state.dirty) == (commit, "HEAD", False)
    (tree / "folder").mkdir()
    assert describe_git(tree / "folder").commit == commit


def test_environment_holds_no_environment_variable(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setenv("HARMLESS", "canary")
    described = describe_environment()
    assert "canary" not in json.dumps(described)
    assert int(str(described["num_cores"])) >= 1
