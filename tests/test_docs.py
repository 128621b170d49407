"""What the documentation says can be followed: links lead somewhere, and its commands compose."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.main import VERBS
from lmtrain.data.synthetic import synthetic
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import configs_of
from lmtrain.run.gate import check
from tests import tiny

ROOT = tiny.PROJECT
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
README = (ROOT / "README.md").read_text()
GUIDES = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("**/*.md")) if path.name != "log.md")
MOST_CHARACTERS = 6000  # of the README: a page that is read to its end


def _commands(page: str, program: str) -> list[str]:
    """Return the command lines of a page's fenced blocks that begin with a program, continued lines joined."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.split("   #")[0].strip() for line in lines if line.startswith(f"{program} ")]


# Left out: "..." stands for arguments of the reader's, and the rest needs files or a search of its own.
NOT_COMPOSED = re.compile(r"\.\.\.|hydra/sweeper|hparams_search|resume=|bigram|--config-dir|--json|optimizer\.lrr")
TRAININGS = dict.fromkeys(
    command.partition("train.py ")[2]
    for page in (README, GUIDES)
    for program in ("python train.py", "torchrun")
    for command in _commands(page, program)
    if not NOT_COMPOSED.search(command)
)


def test_the_readme_is_a_page() -> None:
    assert len(README) <= MOST_CHARACTERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    inside = [target for target in targets if "://" not in target]
    assert [target for target in inside if not _leads_somewhere(page, target)] == []


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, fragment = target.partition("#")
    file = page.parent / path if path else page
    if not fragment:
        return file.exists()
    headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
    return fragment in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("words", TRAININGS)
def test_every_training_command_composes_and_binds(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    for name in ("my/notes", "held/out"):
        Path(name).mkdir(parents=True)
        Path(name, "text.txt").write_text("Some text.")
    Path("chats.jsonl").write_text("")
    arguments = parse_arguments(shlex.split(words))
    composed = [config for config, _ in configs_of(arguments, config_name="train")]
    assert composed
    for config in composed:
        check(config, allowed=[], typed=shlex.split(words))


def test_every_command_shown_exists() -> None:
    shown = {command.split()[1] for page in (README, GUIDES) for command in _commands(page, "lmtrain")}
    assert len(shown) > 15
    assert shown <= VERBS.keys()


def test_every_make_target_shown_exists() -> None:
    targets = re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    shown = set(re.findall(r"(?:^|`)make ([a-z-]+)\b", README + GUIDES, flags=re.MULTILINE))
    assert {"train", "test"} <= shown <= set(targets)


def test_the_data_format_can_be_read_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = synthetic(num_tokens=2048)
    page = (ROOT / "docs" / "data_format.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(re.sub(r'Path\("data/[\w-]+"\)', f'Path("{folder}")', code), names)
    assert len(names["second_document"]) == 512
    assert names["second_document"][-1] == 256  # end of text
