"""Find the private names of other packages in our sources: imports, attributes of modules and objects, overrides."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parents[1] / "src" / "lmtrain"
PACKAGES: Final = ("lightning", "lightning_utilities", "torch", "torchao", "hydra", "omegaconf")
PYTHONS: Final = {"_exit", "_replace"}  # documented in os and in collections, underscore and all
PRIVATE: Final = re.compile(r"_[a-zA-Z][a-zA-Z0-9_]*")


def is_private(name: str) -> bool:
    """Tell a name with one underscore in front."""
    return PRIVATE.fullmatch(name) is not None and name not in PYTHONS


def uses_of(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield each private name of a file that this project did not define; a module's path counts part by part."""
    for node in ast.walk(tree):
        yield from filter(is_private, imported(node))
        if isinstance(node, ast.Attribute) and is_private(node.attr) and (node.attr not in own or is_of_super(node)):
            yield node.attr
        elif isinstance(node, ast.FunctionDef) and is_private(node.name) and is_override(node):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg is not None and is_private(node.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from in_string(node.value)
        elif isinstance(node, ast.Call | ast.Tuple | ast.Subscript):
            yield from named_by_string(node, own)


def imported(node: ast.AST) -> list[str]:
    """Return the parts of an import from one of the packages."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
        return [*str(node.module).split("."), *(each.name for each in node.names)]
    if isinstance(node, ast.Import):
        return [part for each in node.names if each.name.startswith(PACKAGES) for part in each.name.split(".")]
    return []


def is_of_super(node: ast.Attribute) -> bool:
    """Tell `super()._name`."""
    of = node.value
    return isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id == "super"


def is_override(node: ast.FunctionDef) -> bool:
    """Tell a method that is marked as one of a base class."""
    return any(isinstance(each, ast.Name) and each.id == "override" for each in node.decorator_list)


def named_by_string(node: ast.Call | ast.Tuple | ast.Subscript, own: set[str]) -> Iterator[str]:
    """Yield the name in `getattr(x, "_name")`, `vars(x)["_name"]` (not of `own`) and `("torch.module", "_name")`."""
    if isinstance(node, ast.Subscript):
        called = node.value.func if isinstance(node.value, ast.Call) else None
        is_state = isinstance(called, ast.Name) and called.id == "vars"
        is_own = isinstance(node.slice, ast.Constant) and node.slice.value in own
        strings = [node.slice] if is_state and not is_own else []
    elif isinstance(node, ast.Call):
        is_asked = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr")
        strings = node.args[1:2] if is_asked else []
    else:
        first = node.elts[0] if node.elts else None
        is_of = isinstance(first, ast.Constant) and str(first.value).split(".")[0] in PACKAGES
        strings = node.elts[1:] if is_of else []
    yield from (str(each.value) for each in strings if isinstance(each, ast.Constant) and is_private(str(each.value)))


def in_string(text: str) -> Iterator[str]:
    """Yield the private parts of a string that is a dotted name of such a package, or one private attribute."""
    if re.fullmatch(r"[\w.]+", text) and text.split(".")[0] in PACKAGES:
        yield from filter(is_private, text.split("."))


def defined(tree: ast.Module) -> set[str]:
    """Return the private names that a file defines: functions, classes, attributes that it sets, class fields."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def private_uses() -> set[tuple[str, str]]:
    """Return (file below src/lmtrain, name) of every private name that a file neither defines nor inherits from us."""
    trees = {path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}
    return {(file, name) for file, tree in trees.items() for name in uses_of(tree, defined(tree))}
