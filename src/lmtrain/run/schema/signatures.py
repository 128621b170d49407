"""Signatures of a config's targets: read from our sources without importing torch, or from code already imported."""

import ast
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

from lmtrain.errors import ConfigurationError, suggest

OURS: Final = ("lmtrain.", "data_pipelines.")
QUOTES: Final = '"""'
PLAIN: Final = {"int": int, "float": float, "str": str, "bool": bool}
Definition = ast.FunctionDef | ast.ClassDef
# name -> annotation and default, as far as there are any
Parameters = dict[str, tuple[ast.expr | None, ast.expr | None]]


@lru_cache(maxsize=1024)
def parameters_of(call: Callable[..., Any], *, are_evaluated: bool = False) -> Mapping[str, inspect.Parameter]:
    """Return a callable's parameters by name, annotations in quotes evaluated on demand."""
    return inspect.signature(call, eval_str=are_evaluated).parameters


@lru_cache(maxsize=1024)
def hints_of(call: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a function's, or a class's constructor's, parameters by name."""
    return get_type_hints(call.__init__ if isinstance(call, type) else call)


def require_arguments(key: str, given: Iterable[str], *calls: Callable[..., Any]) -> None:
    """Check that each name is a keyword-only argument of one of the calls."""
    found = (one for call in calls for one in inspect.signature(call).parameters.values())
    known = [*dict.fromkeys(one.name for one in found if one.kind is one.KEYWORD_ONLY)]
    if others := [name for name in given if name not in known]:
        raise ConfigurationError(f"{key}: takes {', '.join(known)}; got {others[0]}.{suggest(others[0], known)}")


def setting_names(target: str) -> frozenset[str]:
    """Return the parameters of a function or a class's constructor; none if it is not ours or not found."""
    return frozenset(_parameters(target))


@cache
def default_settings(target: str) -> dict[str, Any]:
    """Return the settings with a plain value as default, and the defaults; a computed default is not known here."""
    values: dict[str, Any] = {}
    for name, (_, default) in _parameters(target).items():
        if default is not None:
            try:
                values[name] = ast.literal_eval(default)
            except ValueError:
                continue
    return values


def setting_type(target: str, name: str) -> Any:
    """Return the annotation of a setting, where it is made of plain types, words and None; else None."""
    annotation, _ = _parameters(target).get(name, (None, None))
    return _type_of(annotation, target.rpartition(".")[0])


def typed_alone(target: str) -> frozenset[str]:
    """Return the settings that only the command line decides, as their annotations say."""
    found = {name: annotation for name, (annotation, _) in _parameters(target).items() if annotation is not None}
    return frozenset(name for name, kind in found.items() if ast.unparse(kind).startswith("TypedAlone["))


def gives_nothing(target: str) -> bool:
    """Return whether a target is a "none" option: one of our functions returning None."""
    match _definition(target):
        case ast.FunctionDef(returns=ast.Constant(value=None)):
            return True
        case _:
            return False


def statements_of(module: str, *, where: Callable[[str], bool]) -> list[ast.stmt]:
    """Return the statements of a module's source `where` their text is as asked, without decorators.

    Only these are parsed: whole modules would take a twentieth of a plan's time.
    """
    return ast.parse("".join(filter(where, _statement_texts(module)))).body


@cache
def _statement_texts(module: str) -> list[str]:
    """Cut a module's source, without its docstring, before each line that begins a statement; empty without source."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return []
    source = Path(spec.origin).read_text() if spec is not None and spec.origin is not None else ""
    texts = re.split(r"^(?=[\w@])", source.split(QUOTES, 2)[-1], flags=re.MULTILINE)
    if any(text.count(QUOTES) % 2 or text.count("'''") % 2 for text in texts):  # a text has such lines
        return [f"{ast.get_source_segment(source, each)}\n" for each in ast.parse(source).body]
    return texts


@cache
def _definition(target: str) -> Definition | None:
    """Find a target in the source of its module, or of the one that it is imported from."""
    module, _, name = target.rpartition(".")
    if not target.startswith(OURS):
        return None
    beginnings = (f"class {name}(", f"class {name}:", f"def {name}(")
    for each in statements_of(module, where=lambda text: text.startswith(beginnings)):
        if isinstance(each, Definition):
            return each
    for each in statements_of(module, where=lambda text: text.startswith("from ") and name in text):
        if isinstance(each, ast.ImportFrom) and not each.level:
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    return _definition(f"{each.module}.{alias.name}")
    return None


@cache
def _parameters(target: str) -> Parameters:
    """Return the parameters of a function or a constructor, or the fields of a dataclass without inherited ones."""
    definition = _definition(target)
    if isinstance(definition, ast.ClassDef):
        constructors = [
            each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        ]
        if not constructors:
            fields = [each for each in definition.body if isinstance(each, ast.AnnAssign)]
            return {
                each.target.id: (each.annotation, each.value) for each in fields if isinstance(each.target, ast.Name)
            }
        definition = constructors[0]
    if definition is None:
        return {}
    arguments = definition.args
    missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    positional = zip(arguments.args, [*missing, *arguments.defaults], strict=True)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {each.arg: (each.annotation, default) for each, default in (*positional, *named) if each.arg != "self"}


def _type_of(annotation: ast.expr | None, module: str) -> Any:
    """Return the type of an annotation of a module, None for one made of other names."""
    match annotation:
        case ast.Name(id=name):
            return PLAIN.get(name) or _words_called(name, module)
        case ast.Constant(value=None):
            return type(None)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            first, second = _type_of(left, module), _type_of(right, module)
            return None if first is None or second is None else first | second
        case ast.Subscript(value=ast.Name(id="TypedAlone"), slice=kind):
            return _type_of(kind, module)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return Literal[ast.literal_eval(words)]
        case _:
            return None


def _words_called(name: str, module: str) -> Any:
    """Return NAME of a line NAME = Literal[...] in a module, or in ours that it imports the name from; else None."""
    if not module.startswith(OURS):
        return None
    beginnings = (f"{name} = Literal[", "from ")
    for each in statements_of(module, where=lambda text: text.startswith(beginnings) and name in text):
        match each:
            case ast.Assign(value=value):
                return _type_of(value, module)
            case ast.ImportFrom(module=str(source), names=names) if name in [one.name for one in names]:
                return _words_called(name, source)
            case _:
                continue
    return None
