"""Every benchmark finds what it imports of this project: most run a few times a year, and rooms move meanwhile."""

import ast

import pytest

from tests import tiny

BENCHMARKS = tiny.PROJECT / "benchmarks"
ROOTS = {"lmtrain": tiny.PROJECT / "src", "benchmarks": tiny.PROJECT}


def names_of(module):
    """Return the names that can be imported from a module of this project, None where there is no such module."""
    path = ROOTS[module.split(".")[0]].joinpath(*module.split("."))
    if path.is_dir():
        init = path / "__init__.py"
        return {each.stem for each in path.iterdir()} | (defined(init) if init.exists() else set())
    file = path.with_suffix(".py")
    return defined(file) if file.exists() else None


def defined(file):
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(each.asname or each.name).split(".")[0] for each in node.names}
    return found


@pytest.mark.parametrize("folder", ["questions", "harness", "peers"])
def test_what_a_benchmark_imports_is_there(folder):
    missing = [
        f"{path.relative_to(BENCHMARKS)}: {node.module}.{name.name}"
        for path in (BENCHMARKS / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS
        for name in node.names
        if name.name not in (names_of(node.module) or ())
    ]
    assert missing == []
