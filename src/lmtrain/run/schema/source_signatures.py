"""The settings of one of our own parts, read from its source: importing it would load torch for a refusal."""

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

OURS = ("lmtrain.", "data_pipelines.")
PLAIN: Final = {"int": int, "float": float, "str": str, "bool": bool}
Definition = ast.FunctionDef | ast.ClassDef


def setting_names(target: str) -> frozenset[str]:
    """Return the parameters of a function or a class's constructor; none if it is not ours or not found."""
    definition = _definition(target)
    if isinstance(definition, ast.FunctionDef):
        return _of_function(definition)
    return _of_class(definition) if definition else frozenset()


def default_settings(target: str) -> dict[str, Any]:
    """Return the settings with a plain value as default, and the defaults."""
    definition = _definition(target)
    constructor = _constructor(definition) if isinstance(definition, ast.ClassDef) else definition
    if constructor is not None:
        return _plain(_function_defaults(constructor))
    return _plain(_field_defaults(definition)) if isinstance(definition, ast.ClassDef) else {}


def setting_types(target: str) -> dict[str, Any]:
    """Return the settings whose annotation is made of plain types, words and None, with it."""
    definition = _definition(target)
    constructor = _constructor(definition) if isinstance(definition, ast.ClassDef) else definition
    if constructor is not None:
        arguments = constructor.args
        annotations = {each.arg: each.annotation for each in (*arguments.args, *arguments.kwonlyargs)}
    else:
        fields = definition.body if isinstance(definition, ast.ClassDef) else []
        named = [each for each in fields if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        annotations = {ast.unparse(each.target): each.annotation for each in named}
    types = {name: _type_of(annotation) for name, annotation in annotations.items()}
    return {name: kind for name, kind in types.items() if kind is not None}


def typed_alone(target: str) -> frozenset[str]:
    """Return the settings that no file decides, as their annotations say."""
    definition = _definition(target)
    constructor = _constructor(definition) if isinstance(definition, ast.ClassDef) else definition
    annotated: list[ast.arg] | list[ast.AnnAssign] = []
    if constructor is not None:
        annotated = [*constructor.args.args, *constructor.args.kwonlyargs]
    elif isinstance(definition, ast.ClassDef):
        annotated = [each for each in definition.body if isinstance(each, ast.AnnAssign)]
    return frozenset(
        each.arg if isinstance(each, ast.arg) else ast.unparse(each.target)
        for each in annotated
        if each.annotation is not None and ast.unparse(each.annotation).startswith("TypedAlone[")
    )


def _type_of(annotation: ast.expr | None) -> Any:
    """Return the type of an annotation, None for one made of other names."""
    match annotation:
        case ast.Name(id=name):
            return PLAIN.get(name)
        case ast.Constant(value=None):
            return type(None)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            first, second = _type_of(left), _type_of(right)
            return None if first is None or second is None else first | second
        case ast.Subscript(value=ast.Name(id="TypedAlone"), slice=kind):
            return _type_of(kind)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return Literal[ast.literal_eval(words)]
        case _:
            return None


def gives_nothing(target: str) -> bool:
    """Tell whether a target is a "none" option: one of our functions returning None."""
    definition = _definition(target)
    match definition:
        case ast.FunctionDef(returns=ast.Constant(value=None)):
            return True
        case _:
            return False


def built_class(target: str) -> str | None:
    """Return the name of the class that one of our targets makes: itself, or the one in a function's annotation."""
    match _definition(target):
        case ast.ClassDef(name=name) | ast.FunctionDef(returns=ast.Name(id=name)):
            return name
        case _:
            return None


@cache
def statements_of(module: str) -> list[ast.stmt]:
    """Return the statements of a module's source; none where there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return []
    return ast.parse(Path(spec.origin).read_text()).body if spec is not None and spec.origin is not None else []


@cache
def _definition(target: str) -> Definition | None:
    """Find a target in the source of its module, or of the one that it is imported from."""
    module, _, name = target.rpartition(".")
    if not target.startswith(OURS):
        return None
    for each in statements_of(module):
        if isinstance(each, Definition) and each.name == name:
            return each
        if isinstance(each, ast.ImportFrom) and not each.level:
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    return _definition(f"{each.module}.{alias.name}")
    return None


def _of_function(function: ast.FunctionDef) -> frozenset[str]:
    arguments = function.args
    return frozenset(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)) - {"self"}


def _of_class(definition: ast.ClassDef) -> frozenset[str]:
    """Take the constructor, or the fields of a dataclass without the ones it inherits."""
    if constructor := _constructor(definition):
        return _of_function(constructor)
    fields = (statement.target for statement in definition.body if isinstance(statement, ast.AnnAssign))
    return frozenset(field.id for field in fields if isinstance(field, ast.Name))


def _constructor(definition: ast.ClassDef) -> ast.FunctionDef | None:
    methods = (each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    return next(methods, None)


def _function_defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    arguments = function.args
    last = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    positional = {argument.arg: default for argument, default in zip(last, arguments.defaults, strict=True)}
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return positional | {argument.arg: default for argument, default in named if default is not None}


def _field_defaults(definition: ast.ClassDef) -> dict[str, ast.expr]:
    fields = [each for each in definition.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    return {ast.unparse(field.target): field.value for field in fields if field.value is not None}


def _plain(defaults: dict[str, ast.expr]) -> dict[str, Any]:
    """Keep literal values; a computed default is not known here."""
    values: dict[str, Any] = {}
    for name, default in defaults.items():
        try:
            values[name] = ast.literal_eval(default)
        except ValueError:
            continue
    return values
