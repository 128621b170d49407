"""The settings that one of our own parts takes, read from its source: importing it would load torch for a refusal."""

import ast
import importlib.util
from pathlib import Path

OURS = ("lmtrain.", "data_pipelines.")


def setting_names(target: str) -> frozenset[str]:
    """Return the names that a function's or a class's constructor takes; none for what is not ours or not found."""
    module_name, _, name = target.rpartition(".")
    if not target.startswith(OURS):
        return frozenset()
    try:
        spec = importlib.util.find_spec(module_name)
    except ModuleNotFoundError:
        return frozenset()
    if spec is None or spec.origin is None:
        return frozenset()
    for statement in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return _of_function(statement)
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return _of_class(statement)
    return frozenset()


def _of_function(function: ast.FunctionDef) -> frozenset[str]:
    arguments = function.args
    return frozenset(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)) - {"self"}


def _of_class(definition: ast.ClassDef) -> frozenset[str]:
    """Take the constructor, or the fields of a dataclass without the ones it inherits."""
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return _of_function(statement)
    fields = (statement.target for statement in definition.body if isinstance(statement, ast.AnnAssign))
    return frozenset(field.id for field in fields if isinstance(field, ast.Name))
