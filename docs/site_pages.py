"""Pages that `make docs` generates: options from conf/, commands from their --help, Python from docstrings."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "lmtrain.api",
    "lmtrain.run.load",
    "lmtrain.errors",
    "lmtrain.callbacks",
    "lmtrain.training.datamodule",
    "lmtrain.models.llama",
    "lmtrain.models.gpt2",
    "lmtrain.optim.muon",
    "lmtrain.losses.cross_entropy",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the decisions' table of contents."""
    pages = {"options": _options(), "commands": _commands(), "python": _python()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def _options() -> str:
    """Return every group of conf/ with its options and their keys; the default is marked."""
    train = (ROOT / "conf/train.yaml").read_text()
    defaults = dict(re.findall(r"^  - (?:override /)?(\w+): (\w+)", train, flags=re.MULTILINE))
    parts = ["# Options", "", "Every group of `conf/`, as `python train.py --help GROUP=OPTION` prints it.", ""]
    for folder in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        options = sorted(folder.glob("*.yaml"))
        if options:
            parts += [f"## {folder.name}", ""]
            for path in options:
                parts += _option(path, is_default=defaults.get(folder.name) == path.stem)
    parts += ["## Keys outside the groups", "", "```yaml", train.strip(), "```", ""]
    return "\n".join(parts)


def _option(path: Path, *, is_default: bool) -> Iterator[str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    summary = lines[0].removeprefix("# ") if lines and lines[0].startswith("# ") else ""
    body = "\n".join(lines[1:] if summary else lines).strip()
    yield from (f"### `{path.parent.name}={path.stem}`{' (default)' if is_default else ''}", "", summary, "")
    if body:
        yield from ("```yaml", body, "```", "")


def _commands() -> str:
    """Return the help of every command."""
    usage = _help("--help")
    names = re.findall(r"^  (\w+) +\S", usage, flags=re.MULTILINE)
    parts = ["# Commands", "", "```", usage, "```", ""]
    for name in names:
        parts += [f"## lmtrain {name}", "", "```", _help(name, "--help"), "```", ""]
    return "\n".join(parts)


def _help(*words: str) -> str:
    command = [str(ROOT / ".venv/bin/python"), "-m", "lmtrain.cli", *words]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def _python() -> str:
    """Return the public Python modules, filled in by mkdocstrings."""
    return "\n".join(["# Python API", "", *(f"::: {name}\n" for name in PUBLIC)])
