"""What the documentation says can be followed: links lead somewhere, commands compose, refusals are worded as shown."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmtrain.cli.main import VERBS
from lmtrain.data.synthetic import synthetic
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.paths import conf_folder, group_folders
from lmtrain.run.execution.check_config import check_config
from tests import tiny

ROOT = tiny.PROJECT
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
RUNS = (ROOT / "docs/runs.md").read_text()
CHOICES = (ROOT / "docs/choices.md").read_text()
MOST_CHARACTERS = 8000  # of the README: a page that is read to its end


def blocks(page: str) -> list[str]:
    """Return a page's fenced blocks."""
    return re.findall(r"^```\w*\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def commands(page: str, program: str) -> list[str]:
    """Return the command lines of a page that begin with a program, whether or not after a prompt."""
    lines = [line.removeprefix("$ ") for block in blocks(page) for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


REFUSALS = re.findall(r"^\$ python train\.py (.+)\nlmtrain: (.+)$", RUNS, flags=re.MULTILINE)
TRAININGS = [
    command.partition("train.py ")[2]
    for page in (README, RUNS, CHOICES)
    for command in [*commands(page, "python train.py"), *commands(page, "torchrun")]
    if command.removeprefix("python train.py ") not in dict(REFUSALS)
]


def test_the_readme_is_a_page() -> None:
    assert len(README) <= MOST_CHARACTERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    inside = [target for target in targets if "://" not in target]
    assert [target for target in inside if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """Tell whether a relative link has a file, and its fragment a heading there."""
    path, _, fragment = target.partition("#")
    file = page.parent / path if path else page
    if not fragment:
        return file.exists()
    headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
    return fragment in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_fault_of_the_table_has_its_test() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    rows = re.findall(r"\]\(\.\./(tests/[^)]+)\) `(\w+)` \| [\w ]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert len(rows) > 20
    assert [name for file, name in rows if not is_marked(ROOT / file, name)] == [], (
        "`make test-faults` leaves these out"
    )


def is_marked(file: Path, name: str) -> bool:
    """Tell whether a test is there, and it, its class or its file has the mark `faults`."""
    tree = ast.parse(file.read_text())
    if "pytest.mark.faults" in " ".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)):
        return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    return any("pytest.mark.faults" in map(ast.unparse, node.decorator_list) for node in found)


def test_the_walk_has_thirteen_steps_and_every_step_a_file() -> None:
    steps = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", (ROOT / "docs/walk.md").read_text(), re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in steps] == list(range(1, 14))
    assert [number for number, text in steps if ".py`](../" not in text] == []


@pytest.mark.parametrize("words", TRAININGS)
def test_every_training_command_composes_and_binds(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    arguments = parse_arguments(shlex.split(words))
    composed: list[dict[str, Any]] = []
    for_each_config(lambda config, _: composed.append(config), arguments, config_name="train")
    assert composed
    for config in composed:
        check_config(config, allowed=[])


def test_three_wrong_commands_are_shown() -> None:
    assert len(REFUSALS) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), REFUSALS)
def test_wrong_commands_are_refused_as_shown(words: str, message: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *shlex.split(words)]
    ended = subprocess.run(
        command, cwd=tmp_path, env=tiny.environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == (4 if "data=" in words else 2)
    assert ended.stderr.splitlines()[-1] == f"lmtrain: {message}"


def test_every_verb_is_shown_and_every_verb_shown_exists() -> None:
    shown = set(re.findall(r"(?:`|^)lmtrain (\w+) ?", (ROOT / "docs/commands.md").read_text(), flags=re.MULTILINE))
    assert shown == VERBS.keys()
    assert set(re.findall(r"(?:`|^)lmtrain (\w+) ?", README, flags=re.MULTILINE)) - {"trains"} <= shown


def test_every_make_target_shown_exists() -> None:
    targets = re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    shown = {shlex.split(line)[1] for line in commands(README, "make")} | set(re.findall(r"`make ([a-z-]+)`", README))
    assert {"train", "test"} <= shown <= set(targets)


# options that init_from, an adapter or a task chooses
CHOSEN_BY_OTHERS = {"imported", "inherited", "adamw_gentle", "adamw_adapter", "adamw_preference"}


def table_of_groups() -> Iterator[tuple[str, list[str], set[str]]]:
    """Yield the groups of the table of choices with their options, and those in bold."""
    for group, options in re.findall(r"^\| `(\w+)` \| ([^|]*`[^|]*) \|", CHOICES, flags=re.MULTILINE):
        yield group, re.findall(r"`(\w+)`", options), set(re.findall(r"\*\*`(\w+)`\*\*", options))


def test_the_table_has_every_group_its_options_and_the_defaults_in_bold() -> None:
    entries = yaml.safe_load((conf_folder() / "train.yaml").read_text())["defaults"]
    defaults = {group: option for entry in entries if isinstance(entry, dict) for group, option in entry.items()}
    listed = {group: options for group, options, _ in table_of_groups()}
    assert listed.keys() == {path.name for path in group_folders() if path.name != "machine"}
    for group, options, bold in table_of_groups():
        assert [option for option in options if not (conf_folder() / group / f"{option}.yaml").exists()] == []
        assert bold == ({defaults[group]} if defaults.get(group) else set()), group
        if group != "callbacks":  # those of `default` are named together
            there = {path.stem for path in (conf_folder() / group).glob("*.yaml")}
            assert there - set(options) <= CHOSEN_BY_OTHERS, group


def test_the_data_format_can_be_read_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = synthetic(num_tokens=2048)
    page = (ROOT / "docs" / "data_format.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(re.sub(r'Path\("data/[\w-]+"\)', f'Path("{folder}")', code), names)
    assert len(names["second_document"]) == 512
    assert names["second_document"][-1] == 256  # end of text


def test_no_number_is_left_open() -> None:
    assert [line for page in PAGES for line in page.read_text().splitlines() if "<<TIME" in line] == []
