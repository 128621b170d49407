"""The shapes written in the signatures of models are those of their tensors."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = sorted((ROOT / "src" / "lmtrain" / "models").rglob("*.py"))


@pytest.mark.slow
def test_every_signature_s_shapes_hold_at_run_time():
    pytest.importorskip("beartype")
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("checked_shapes.py"))],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("shapes hold, and one that does not is noticed") == 7


@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.name)
def test_tensors_in_signatures_of_forwards_have_shapes(file):
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    bare = [
        f"{function.name}({argument.arg})"
        for function in functions
        if function.name in ("forward", "features", "__call__")
        for argument in function.args.args
        if argument.annotation is not None and ast.unparse(argument.annotation) in ("Tensor", "Tensor | None")
    ]
    assert bare == []
