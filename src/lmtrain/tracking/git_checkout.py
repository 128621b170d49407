"""Read a git checkout without obeying its own configuration, which may name programs to run.

`git rev-parse` runs none of them. The changes are read with a bare-bones folder in place of `.git`: the same objects
and index, but no config, hooks or attributes of the checkout.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.tracking.redaction import redact_text

MAXIMUM_DIFF_CHARACTERS = 200_000
GIT_SECONDS: Final = 5.0
GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*")
CEILINGS: Final = "GIT_CEILING_DIRECTORIES"  # nothing above these folders is read


@dataclass(frozen=True)
class GitState:
    """The running commit, None where git knows none, and the changes on top of it, cut at a bounded length.

    `branch` is "HEAD" without one.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    diff: str = ""


def describe_git(folder: Path) -> GitState:
    """Read the state of the checkout that a folder is in; no git and no checkout are fine."""
    wanted = ("--absolute-git-dir", "--path-format=absolute", "--git-common-dir", "HEAD", "--abbrev-ref", "HEAD")
    lines = (_git(folder, "rev-parse", *wanted) or "").splitlines()
    trees = (tree for tree in (folder.absolute(), *folder.absolute().parents) if (tree / ".git").exists())
    tree = next(trees, None)  # not git's own word, which the checkout's configuration may change
    if tree is None or len(lines) != 4:
        return GitState()
    own, common, commit, branch = lines
    with tempfile.TemporaryDirectory(prefix="lmtrain-git-") as bare:
        for name in ("objects", "refs"):
            (Path(bare) / name).mkdir()
        (Path(bare) / "HEAD").write_text(f"{commit}\n")
        place = {"GIT_DIR": bare, "GIT_WORK_TREE": str(tree), "GIT_OPTIONAL_LOCKS": "0"}
        place |= {"GIT_INDEX_FILE": f"{own}/index", "GIT_OBJECT_DIRECTORY": f"{common}/objects"}
        status = _git(tree, "status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=all", **place)
        diff = _git(tree, "diff", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD", **place)
    if status is None or diff is None:
        return GitState(commit, branch)
    return GitState(commit, branch, dirty=bool(status.strip()), diff=_bounded(diff))


def _git(folder: Path, *arguments: str, **environment: str) -> str | None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name == CEILINGS}
    try:
        done = subprocess.run(
            [*GIT, *arguments], cwd=folder, env=kept | environment, capture_output=True, errors="replace",
            timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _bounded(diff: str) -> str:
    """Redact a diff and cut it at a bounded length, after a whole line: half a secret is not known as one."""
    if len(diff) < MAXIMUM_DIFF_CHARACTERS:
        return redact_text(diff)
    whole = diff[:MAXIMUM_DIFF_CHARACTERS].rpartition("\n")[0]
    return f"{redact_text(whole)}\n[cut after {MAXIMUM_DIFF_CHARACTERS} characters]\n"
