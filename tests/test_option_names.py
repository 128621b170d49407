"""A text of the sources names no option that is not in conf/."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for folder in ("src/lmtrain", "data_pipelines") for path in (ROOT / folder).rglob("*.py"))
GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra")


def test_every_option_that_a_text_names_is_there() -> None:
    word = re.compile(rf"(?<![\w.])({'|'.join(GROUPS)})=([a-z]\w*)(?![\w.]*[(])")
    named = {
        (path.relative_to(ROOT).as_posix(), group, option)
        for path in MODULES
        for text in ast.walk(ast.parse(path.read_text()))
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        for group, option in word.findall(text.value)
        if group != option
    }
    there = {(path.parent.name, path.stem) for path in (ROOT / "conf").glob("*/*.yaml")}
    assert {each for each in named if each[1:] not in there} == set()
