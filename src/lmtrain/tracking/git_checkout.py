"""Read a git checkout without obeying its own configuration, which may name programs to run.

`git rev-parse` runs none of them. The changes are read with a bare-bones folder in place of `.git`: the same objects
and index, but no config, hooks or attributes of the checkout.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GIT_SECONDS: Final = 5.0
GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*")
CEILINGS: Final = "GIT_CEILING_DIRECTORIES"  # nothing above these folders is read


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A working tree at a commit, its git folder and the folder of the objects of all its working trees.

    `branch` is "HEAD" without one.
    """

    tree: Path
    folder: Path
    common: Path
    commit: str
    branch: str

    def changes(self) -> tuple[str, str] | None:
        """Return `git status` and `git diff` against the commit, None where git fails."""
        with tempfile.TemporaryDirectory(prefix="lmtrain-git-") as place:
            for name in ("objects", "refs"):
                (Path(place) / name).mkdir()
            (Path(place) / "HEAD").write_text(f"{self.commit}\n")
            status = self._git(place, "status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=all")
            flags = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
            diff = None if status is None else self._git(place, "diff", *flags, "HEAD")
        return None if status is None or diff is None else (status, diff)

    def _git(self, place: str, *arguments: str) -> str | None:
        own = {
            "GIT_DIR": place,
            "GIT_WORK_TREE": str(self.tree),
            "GIT_INDEX_FILE": str(self.folder / "index"),
            "GIT_OBJECT_DIRECTORY": str(self.common / "objects"),
            "GIT_OPTIONAL_LOCKS": "0",
        }
        return _git(self.tree, *arguments, environment=own)


def find_checkout(folder: Path) -> Checkout | None:
    """Return the checkout that a folder is in; None outside one, before its first commit and without git."""
    wanted = ("--absolute-git-dir", "--path-format=absolute", "--git-common-dir", "HEAD", "--abbrev-ref", "HEAD")
    lines = (_git(folder, "rev-parse", *wanted) or "").splitlines()
    trees = (tree for tree in (folder.absolute(), *folder.absolute().parents) if (tree / ".git").exists())
    tree = next(trees, None)  # not git's own word, which the checkout's configuration may change
    if tree is None or len(lines) != 4:
        return None
    own, common, commit, branch = lines
    return Checkout(tree=tree, folder=Path(own), common=Path(common), commit=commit, branch=branch)


def _git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str | None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name == CEILINGS}
    try:
        done = subprocess.run(
            [*GIT, *arguments], cwd=folder, env=kept | dict(environment or {}), capture_output=True, errors="replace",
            timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
