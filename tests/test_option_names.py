"""No code asks for an option's name outside the option's own file: what it wants to know, the option says itself.

Nor does a text advise GROUP=NAME of another package: `words_of` finds options by their facts, new ones too.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for folder in ("src/lmtrain", "data_pipelines") for path in (ROOT / folder).rglob("*.py"))
# Groups of which plans, rules and advice ask. Names of callbacks and kinds of budgets are keys of a config.
GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra")
# Groups of ordinary words (tokens, steps, checkpoint, validation, files, ...), which code is full of: there a name is
# seen where it is held against an option, or looked up among the callbacks, and nowhere else.
ORDINARY = {
    *("budget", "callbacks", "cleaning", "data", "deduplicate", "hparams_search", "packing", "source", "tokenizer"),
    "trainer",
}
# Words that mean something else in code too. Next to what is known to be an option's name they count all the same.
OTHER_MEANINGS = {
    *("auto", "none", "momentum"),  # settings and their values
    *("model", "context", "linear", "tensor"),  # keys of many dicts, a way to stretch rotations, numbers in a shape
    *("fp32", "tf32", "fp8", "csv"),  # formats
    *("mlflow", "slurm", "tensorboard", "torch", "trackio", "wandb"),  # the programs
    *("cpu", "local", "memory"),  # kinds of devices, executors, amounts
    *("imported", "pipeline"),  # of what comes from a folder; a verb, and its group
}
# Where a name is compared all the same, with the reason. Keep it short.
ALLOWED = {
    "src/lmtrain/run/compose/other_programs.py": "the table of other programs' words, and ours for each",
    "src/lmtrain/run/compose/compose.py": "most commands do without the import of the scaling's rules",
    "src/lmtrain/run/execution/meta_build.py": "a constructor's parameter for the run's context",
    "src/lmtrain/run/run_config.py": "its field for the trainer's node is called make_trainer",
    "src/lmtrain/optim/muon.py": "its groups of parameters are of two kinds: muon and adamw",
    "src/lmtrain/training/checkpointing/weights.py": "a word of --weights",
    "src/lmtrain/report/scaling_study.py": "a key of the printed JSON",
    "src/lmtrain/callbacks/__init__.py": "the public names of the callbacks",
    "src/lmtrain/data/__init__.py": "the public names of the data modules",
    "src/lmtrain/simulate/recorder.py": "the namespace of torch's own operators",
}
# Groups whose options state facts, by which advice finds them. Models are a person's choice, named as examples.
ADVISED = (
    *("attention", "compile", "loss", "optimizer", "precision", "recompute", "schedule", "strategy"),
    "weight_average",
)
# Where a text names one all the same, with the reason.
NAMING = {
    "src/lmtrain/run/compose/start_options.py": "the option that takes the optimizer of a run",
    "src/lmtrain/report/ledger.py": "the remedy of eager steps, beside its measured share",
    "src/lmtrain/run/compose/other_programs.py": "the table of other programs' options, and ours for each",
    "src/lmtrain/cli/help.py": "examples of a command line",
    "src/lmtrain/cli/commands/runs.py": "an example of a command line",
    "src/lmtrain/run/pipelines/stages.py": "the words of a preflight: any schedule of a few steps",
    "src/lmtrain/cli/commands/parity.py": "the words of a comparison on any machine",
    "src/lmtrain/cli/commands/tune.py": "the words of a range test, whose schedule is none of the config's",
    "src/lmtrain/missing_package.py": "the optimizer that needs no package",
    "src/lmtrain/run/execution/failures.py": "the remedy of a failed kernel: a run without compiled ones",
    "src/lmtrain/run/planning/simulated_fleets.py": "the remedies of what a simulation cannot run",
    "src/lmtrain/run/depth_dial.py": "its own file: the dial was tuned for this optimizer",
}
Constants = Mapping[str, set[str]]
TARGET = re.compile(r"^_target_: (\S+)|^  _target_: (\S+)", re.MULTILINE)


@cache
def parsed(source: str) -> ast.Module:
    """Parse a module once for all tests."""
    return ast.parse(source)


@cache
def own_files() -> dict[str, set[str]]:
    """Return the words (OPTION and GROUP=OPTION) and targets of all options, each with the modules of its code."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (path for group in GROUPS for path in (ROOT / "conf" / group).glob("*.yaml")):
        match = TARGET.search(path.read_text())
        target = (match.group(1) or match.group(2)) if match else ""
        module, _, name = target.rpartition(".")
        file = f"src/{module.replace('.', '/')}.py" if module else path.relative_to(ROOT).as_posix()
        for word in {path.stem, f"{path.parent.name}={path.stem}", name, target} - {"", "???"}:
            found[word].add(file)
    return found


@cache
def constants() -> dict[str, set[str]]:
    """Return the strings in each constant of any module, by the constant's name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for name, held in constants_of(parsed(path.read_text())).items():
            found[name] |= held
    return found


def constants_of(tree: ast.Module) -> dict[str, set[str]]:
    """Return the strings in each constant of one module."""
    found: dict[str, set[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
            found |= {name: strings(statement.value) for name in names}
    return found


@cache
def ordinary_words() -> set[str]:
    """Return the options' words that count where they are held against an option alone."""
    return {path.stem for group in ORDINARY for path in (ROOT / "conf" / group).glob("*.yaml")}


def strings(expression: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(expression)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
    }


def says(operand: ast.expr, own: Constants) -> set[str]:
    """Return the strings that a comparison is made with: literal ones and those of constants, its `own` first."""
    if isinstance(operand, ast.Name):
        return own.get(operand.id) or constants().get(operand.id, set())
    literal = isinstance(operand, ast.Constant | ast.Tuple | ast.List | ast.Set)
    return strings(operand) if literal else set()


def is_name_of_option(expression: ast.AST, names: frozenset[str] = frozenset()) -> bool:
    """Tell whether an expression holds an option's word or target, or a variable that was bound to one."""
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Name(id="word_of")):
                return True
            case ast.Subscript(slice=ast.Constant(value="_target_") | ast.Name(id="TARGET")):
                return True
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value="_target_"), *_]):
                return True
            case ast.Attribute(attr="word" | "target" | "callbacks"):  # of a node; a config's, by their names
                return True
            case ast.Name(id=name) if name in names:
                return True
            case _:
                pass
    return False


def bound_names(function: ast.AST) -> frozenset[str]:
    """Return the variables of a function that hold an option's name."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and is_name_of_option(node.value) and not isinstance(node.value, ast.Dict):
            found |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if isinstance(node, ast.NamedExpr) and is_name_of_option(node.value):
            found.add(node.target.id)
    return frozenset(found)


def questions(tree: ast.Module) -> Iterator[tuple[int, set[str], bool]]:
    """Give line and strings of every comparison, table and case, and whether an option's name is held against it."""
    own = constants_of(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                yield node.lineno, set().union(*(says(each, own) for each in (left, *others))), False
            case ast.Dict(keys=keys):
                yield node.lineno, set().union(*(says(key, own) for key in keys if key is not None)), False
            case ast.MatchValue(value=value):
                yield value.lineno, says(value, own), False
            case _:
                pass
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = bound_names(function)
            yield from ((line, words, True) for line, words in asked_of_names(function, names, own))


def asked_of_names(function: ast.FunctionDef, names: frozenset[str], own: Constants) -> Iterator[tuple[int, set[str]]]:
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=left, comparators=others, ops=ops):
                held = [operand for operand in (left, *others) if is_name_of_option(operand, names)]
                if held and not any(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                    yield node.lineno, set().union(*(says(each, own) for each in (left, *others)))
            case ast.Subscript(value=ast.Attribute(attr="callbacks"), slice=name):
                yield node.lineno, strings(name)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="callbacks"), attr="get"), args=[name, *_]):
                yield node.lineno, strings(name)
            case ast.Call(func=ast.Attribute(value=value, attr="endswith"), args=[ending]):
                if is_name_of_option(value, names):
                    yield node.lineno, {text.lstrip(".") for text in strings(ending)}
            case _:
                pass


def names_asked_for(source: str, path: str) -> list[str]:
    """Return the places of a source that ask for the name of an option of another file."""
    known = own_files()
    return sorted(
        {
            f"{path}:{line} {word}"
            for line, words, is_held in questions(parsed(source))
            for word in words
            if word in known
            and path not in known[word]
            and (is_held or "=" in word or word not in OTHER_MEANINGS | ordinary_words())
        }
    )


def names_advised(source: str, path: str) -> list[str]:
    """Return the places of a source whose texts name an option of another package."""
    tree = parsed(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    word = re.compile(rf"(?<![\w.])(?:{'|'.join(ADVISED)})=\w+")
    found: list[str] = []
    for text in ast.walk(tree):
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value not in docstrings:
            for named in word.findall(text.value):
                files = own_files().get(named)
                if files and not any(Path(path).is_relative_to(Path(file).parent) for file in files):
                    found.append(f"{path}:{text.lineno} {named}")
    return found


def test_no_text_advises_an_option_of_another_package() -> None:
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in MODULES}
    advised = {path: places for path, source in found.items() if (places := names_advised(source, path))}
    assert {path: places for path, places in advised.items() if path not in NAMING} == {}
    assert sorted(NAMING.keys() - advised.keys()) == [], "these name none any more: take them off the list"


def test_every_option_that_a_text_names_is_there() -> None:
    word = re.compile(rf"(?<![\w.])({'|'.join(GROUPS)})=([a-z]\w*)(?![\w.]*[(])")
    named = {
        (path.relative_to(ROOT).as_posix(), group, option)
        for path in MODULES
        for text in ast.walk(parsed(path.read_text()))
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        for group, option in word.findall(text.value)
    }
    there = {(path.parent.name, path.stem) for path in (ROOT / "conf").glob("*/*.yaml")}
    assert {each for each in named if each[1:] not in there} == set()


def test_no_option_is_asked_for_by_its_name() -> None:
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in MODULES}
    asked = {path: names_asked_for(source, path) for path, source in found.items()}
    asked = {path: places for path, places in asked.items() if places}
    assert {path: places for path, places in asked.items() if path not in ALLOWED} == {}
    assert sorted(ALLOWED.keys() - asked.keys()) == [], "these ask no more: take them off the list"


@pytest.mark.parametrize(
    "source",
    [
        "x = name == 'adamw'",
        "x = name in ('muon', 'other')",
        "KINDS = {'bf16_true': 1}",
        "match name:\n    case 'fsdp': pass",
        "def f(config):\n    return word_of(config['precision']) != 'none'",
        "def f(config):\n    word = word_of(config['precision'])\n    return word in {'fp32', 'tf32'}",
        "def f(config):\n    return config['recompute']['_target_'].endswith('.none')",
        "def f(config):\n    return config.precision.word in ('fp32', 'tf32')",
        "def f(node):\n    return not node.target.endswith('.none')",
        "def f(config):\n    return 'checkpoint' in config.callbacks",
        "def f(config):\n    return config.callbacks.get('checkpoint')",
        "def f(config):\n    return config.callbacks['validation']",
        "def f(words):\n    return 'compile=auto' in words",
        "WAYS = {'strategy=fsdp': 1}",
        "def f(node):\n    return node.get('_target_') == 'lmtrain.models.llama.Llama'",
    ],
)
def test_every_way_to_ask_is_seen(source: str) -> None:
    assert names_asked_for(source, "src/lmtrain/here.py")


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("x = name == 'adamw'", "src/lmtrain/optim/adamw.py"),
        ("x = dtype == 'fp32'", "src/lmtrain/here.py"),
        ("def f(config):\n    return facts_of(config['recompute'], Facts).recomputes", "src/lmtrain/here.py"),
    ],
)
def test_its_own_file_and_formats_may_name_an_option(source: str, path: str) -> None:
    assert names_asked_for(source, path) == []


@pytest.mark.parametrize(
    ("source", "path", "is_seen"),
    [
        ("x = f'{y}: use optimizer=adamw'", "src/lmtrain/here.py", True),
        ("def f():\n    'See optimizer=adamw.'\n    return 'or strategy=fsdp over more'", "src/lmtrain/here.py", True),
        ("x = 'use optimizer=adamw'", "src/lmtrain/optim/lion.py", False),
        ("def f():\n    'See optimizer=adamw.'", "src/lmtrain/here.py", False),
        ("x = 'strategy=mine optimizer.lr=1'", "src/lmtrain/here.py", False),
    ],
)
def test_advice_is_seen_outside_the_package_of_its_option(source: str, path: str, is_seen: bool) -> None:
    assert bool(names_advised(source, path)) is is_seen
