"""The shape of the tree, held by tests: direction of imports, nothing of one machine."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]
SHIPPED = (ROOT / "src" / "lmtrain", ROOT / "data_pipelines")
# What leaves with an exported model is one file by itself, held to ours by tests/interop/test_own_code.py.
CARRIED_AWAY = ROOT / "src" / "lmtrain" / "interop" / "own_code" / "modeling_lmtrain.py"
MODULES = sorted(path for folder in SHIPPED for path in folder.rglob("*.py") if path != CARRIED_AWAY)

NUM_BODY_LINES = 40  # without the signature, which is as long as a constructor has settings, and the docstring

# Packages that cost so much to import that a function may do it late, so that --help and plan stay fast.
HEAVY = {
    *("datasets", "lightning", "mlflow", "pydantic", "rich", "scipy", "tokenizers", "torch", "transformers"),
    "typing_extensions",  # a tenth of what Hydra takes
    *("datatrove", "loguru", "ray"),  # of the extras `data` and `ray`, which need not be there
    *("gguf", "lm_eval", "llguidance"),  # of the extras `gguf`, `eval` and `serve`
    "uvicorn",  # of the extra `serve`
    *("cmaes", "optuna", "submitit"),  # of the extra `sweep`
    *("torchft", "trackio", "pynvml", "wandb"),  # of the extras of these names
    *("fastokens", "huggingface_hub"),  # may be missing; only names on the hub need the last
}
KERNELS = "_kernel"  # a module of Triton's, which not every system has
# Where our own modules, hydra and omegaconf may come late too: what must answer before anything heavy is there.
LIGHT = (
    "src/lmtrain/api.py",
    "src/lmtrain/cli/",
    "src/lmtrain/missing_package.py",
    "src/lmtrain/cli/commands/",
    "src/lmtrain/run/",
    "src/lmtrain/launch/",
    "src/lmtrain/tracking/",
)
LATE_IN_LIGHT = HEAVY | {"lmtrain", "data_pipelines", "hydra", "omegaconf", "importlib"}


# What composes a config, checks it, or keeps it as data; everything else takes the typed one.
READING = tuple(
    f"src/lmtrain/{name}"
    for name in (
        *("run/compose/", "run/schema/", "run/run_config.py"),
        *("run/scaling.py", "run/scaling_rules.py"),
        *("run/gate.py", "run/stored_runs/"),
        *("run/planning/tried_words.py", "run/sweeps/search.py"),  # typed; as data
        *(
            "run/execution/preparation.py",
            "run/pipelines/stages.py",
            "cli/commands/prepare.py",
        ),  # configs of their own, not a run's
        *(
            "cli/commands/train.py",
            "cli/commands/export.py",
        ),  # the cache's folder before torch is there; transformers' config
    )
)


NOT_OURS = {"__pycache__", "runs", "data", "multirun", "outputs", "dist", "site"}
HIDDEN_BUT_OURS = {".ci", ".github"}
OF_ONE_MACHINE = {
    "a machine's path": r"(?<![\w.~-])/(?:work|root|home|Users)/\w",
    "a package registry's address": r"pypi\.org|pythonhosted\.org|npmjs\.org|index[-]url|find[-]links",
    "an issue's number": r"(?i)\bissues? #?\d+\b",
}


def test_imports_point_the_agreed_way() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_functions_are_short() -> None:
    lengths = {f"{_name(path)}:{node.name}": _num_body_lines(node) for path in MODULES for node in _functions(path)}
    assert {name: length for name, length in lengths.items() if length > NUM_BODY_LINES} == {}


def test_only_heavy_packages_are_imported_late() -> None:
    late = [
        f"{_name(path)}:{statement.lineno} {imported}"
        for path in MODULES
        for statement, imported in _late_imports(path)
        if imported.split(".")[0] not in (LATE_IN_LIGHT if _name(path).startswith(LIGHT) else HEAVY)
        if not imported.endswith(KERNELS)
    ]
    assert late == []


@pytest.mark.parametrize("what", OF_ONE_MACHINE)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(OF_ONE_MACHINE[what])
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path in _texts()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _texts() -> Iterator[Path]:
    """Every file a person wrote, except lock files, the licence and the pointer of a git worktree."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if _is_ours(name)]
        paths = (
            Path(folder, name) for name in names if name not in {".git", "requirements.lock", "uv.lock", "LICENSE"}
        )
        yield from (path for path in paths if _is_text(path))


def _is_ours(folder_name: str) -> bool:
    return folder_name not in NOT_OURS and (folder_name[0] != "." or folder_name in HIDDEN_BUT_OURS)


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _num_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[ast.get_docstring(function) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _late_imports(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    for function in _functions(path):
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                yield node, node.module or "."
            elif isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)


def test_only_the_reading_of_a_config_looks_into_its_plain_values() -> None:
    look_up = re.compile(
        r"""\b(?:config|composed|changed)(?:\[["']|\.get\(|\.items\(|\.values(?:\[|\.))|\bconfig: (?:dict|Mapping)\["""
    )
    rooms = (ROOT / "src/lmtrain" / name for name in ("run", "cli", "training", "callbacks"))
    files = (path for room in rooms for path in room.rglob("*.py") if not _name(path).startswith(READING))
    assert [_name(path) for path in files if look_up.search(path.read_text())] == []


def test_no_class_name_is_used_twice() -> None:
    """A search for a class finds one."""
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(module.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1 and name != "Run"} == {}
