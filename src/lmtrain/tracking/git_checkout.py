"""Read a git checkout without obeying its own configuration, which may name programs to run.

The commit and the branch are read from the files in `.git`. The changes need git itself, which gets a bare-bones
folder in place of `.git`: the same objects and index, but no config, hooks or attributes of the checkout.
"""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

GIT_SECONDS = 5.0
LARGEST_FILE_BYTES = 64 << 20  # of packed references
COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCHES = "refs/heads/"


@dataclass(frozen=True)
class Checkout:
    """A working tree, its git folder and the folder with the objects and branches of all its working trees."""

    tree: Path
    folder: Path
    common: Path

    @property
    def branch(self) -> str:
        """Return the branch's name, "HEAD" without one."""
        return self._head().removeprefix(f"ref: {BRANCHES}") if self._head().startswith("ref: ") else "HEAD"

    def commit(self) -> str | None:
        """Return the checked-out commit, None before the first one."""
        head = self._head()
        if not head.startswith("ref: "):
            return _commit_or_none(head)
        name = head.removeprefix("ref: ")
        if ".." in name or not name.startswith("refs/"):
            return None
        return _commit_or_none(_read(self.common / name)) or self._packed(name)

    def changes(self, commit: str) -> tuple[str, str] | None:
        """Return `git status` and `git diff` against a commit, None where git is missing or fails."""
        with tempfile.TemporaryDirectory(prefix="lmtrain-git-") as place:
            for name in ("objects", "refs"):
                (Path(place) / name).mkdir()
            (Path(place) / "HEAD").write_text(f"{commit}\n")
            status = self._git(place, "status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=all")
            flags = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
            diff = None if status is None else self._git(place, "diff", *flags, "HEAD")
        return None if status is None or diff is None else (status, diff)

    def _git(self, place: str, *arguments: str) -> str | None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        own = {
            "GIT_DIR": place,
            "GIT_WORK_TREE": str(self.tree),
            "GIT_INDEX_FILE": str(self.folder / "index"),
            "GIT_OBJECT_DIRECTORY": str(self.common / "objects"),
            "GIT_OPTIONAL_LOCKS": "0",
        }
        settings = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
        command = ["git", *settings, *arguments]
        try:
            done = subprocess.run(
                command, cwd=self.tree, env=kept | own, capture_output=True, errors="replace", timeout=GIT_SECONDS,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def _head(self) -> str:
        return _read(self.folder / "HEAD")

    def _packed(self, name: str) -> str | None:
        lines = (line.partition(" ") for line in _read(self.common / "packed-refs").splitlines())
        return next((_commit_or_none(commit) for commit, _, ref in lines if ref == name), None)


def find_checkout(folder: Path) -> Checkout | None:
    """Return the checkout that a folder is in; None outside one.

    Git's own limit holds: nothing above a folder of GIT_CEILING_DIRECTORIES is read.
    """
    ceilings = {Path(path) for path in os.environ.get("GIT_CEILING_DIRECTORIES", "").split(os.pathsep) if path}
    for tree in (folder.absolute(), *folder.absolute().parents):
        if tree in ceilings and tree != folder.absolute():
            return None
        git = tree / ".git"
        if git.is_file():  # of a further working tree, or of a submodule
            git = tree / _read(git).removeprefix("gitdir: ")
        if (git / "HEAD").is_file():
            common = git / (_read(git / "commondir") or ".")
            return Checkout(tree, git, common)
    return None


def _commit_or_none(text: str) -> str | None:
    return text if COMMIT.fullmatch(text) else None


def _read(path: Path) -> str:
    """Return a regular file's text without spaces around it, "" where it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE_BYTES:
            return ""
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
