"""Bytes of a stranger end in what they hold or in one of our refusals: no traceback, no hang, no memory for the asking.

A short search each time, the same each time; `make fuzz` searches for minutes, elsewhere each time.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.foreign_bytes import damaged_bytes, damaged_json, damaged_lines, guarded
from tests.foreign_parsers import PARSERS, RUN_PARSERS, Parser, made

DAMAGES = {"bytes": damaged_bytes, "json": damaged_json, "lines": damaged_lines}
EXAMPLES = int(os.environ.get("LMTRAIN_FUZZ_EXAMPLES", "0"))  # of each parser, by `make fuzz`
SHORT = settings(
    max_examples=EXAMPLES or 12, derandomize=not EXAMPLES, database=None, deadline=None,
    suppress_health_check=list(HealthCheck), print_blob=True,
)  # fmt: skip


# Their bytes are this program's own, or, of a line of a data set, JSON whose depth is a reason of its own to skip it.
OWN_JSON = {
    *("src/lmtrain/storage/foreign_json.py", "src/lmtrain/tokenizers/template_renderer.py"),
    *(
        "src/lmtrain/tracking/mlflow/sink.py",
        "src/lmtrain/tracking/redaction.py",
    ),
    *("src/lmtrain/data/row_files.py", "src/lmtrain/models/transformers_model.py"),
}


def test_json_and_yaml_from_elsewhere_have_one_bounded_reader() -> None:
    root = Path(__file__).parents[1]
    texts = {
        str(path.relative_to(root)): path.read_text()
        for part in ("src", "data_pipelines")
        for path in (root / part).rglob("*.py")
    }
    assert {name for name, text in texts.items() if "json.loads(" in text or "json.load(" in text} == OWN_JSON
    assert {name for name, text in texts.items() if "pickle.load" in text} <= {"data_pipelines/processes.py"}


def search(parser: Parser) -> None:
    """Read damaged inputs; raises what a reader should not."""
    files = made(parser.make)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        parser.read(folder)  # sound

        @SHORT
        @given(st.deferred(lambda: DAMAGES[parser.damage](files[parser.file])))
        def reading(content: bytes) -> None:
            (folder / parser.file).write_bytes(content)
            refusal = ""
            with guarded():
                try:
                    parser.read(folder)
                except parser.refusals as refused:
                    refusal = str(refused)
            assert "\n" not in refusal

        reading()


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_damage_is_read_or_refused(parser: Parser) -> None:
    search(parser)


FEW = [parser for parser in RUN_PARSERS if EXAMPLES or parser.name.startswith(("show", "metrics", "job", "ledger of"))]


@pytest.mark.slow
@pytest.mark.parametrize("parser", FEW, ids=lambda parser: parser.name)
def test_a_damaged_run_is_read_or_refused(parser: Parser) -> None:
    search(parser)
