import json
import re

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.inference.prompt_file import read_prompts, written_so_far


def test_prompts_are_read_line_by_line(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"prompt": "a\\u2028b", "id": 1}\n\n{"prompt": ""}')
    assert read_prompts(file) == ["a\u2028b", ""]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n\nnot json', r"in.jsonl:3 is no JSON"),
        (b'{"text": "a"}', r'in.jsonl:1 has no text "prompt"'),
        (b'["a"]', r"in.jsonl:1 is no object"),
        (b"\xff", r"in.jsonl is no UTF-8"),
        (b"[" * 100_000, r"in.jsonl:1 is no JSON"),
        (b'{"prompt": "\\ud800"}', r"in.jsonl:1 is no JSON .*surrogates"),
        (b"\n", r"in.jsonl has no lines"),
    ],
)
def test_a_file_of_anything_else_is_refused(content, message, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_prompts(tmp_path / "in.jsonl")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="is not a file"):
        read_prompts(tmp_path / "in.jsonl")


def test_half_a_line_is_cut_off(tmp_path):
    out = tmp_path / "out.jsonl"
    assert written_so_far(out, ["a"], by={}) == set()
    whole = '{"index": 1, "prompt": "b", "written_by": {}}\n'
    out.write_text(whole + '{"index": 0, "pro')
    assert written_so_far(out, ["a", "b"], by={}) == {1}
    assert out.read_text() == whole


BY = {"model": "a/step_00000005", "sha256": "1f", "num_new_tokens": 10, "temperature": 0.8, "top_k": None, "stop": []}


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (BY, None),
        (BY | {"model": "renamed"}, None),
        (BY | {"sha256": "2e"}, "sha256=2e, now 1f"),  # trained anew under its name
        (BY | {"model": "b", "sha256": "2e", "top_k": 5}, "model=b, now a/step_00000005; top_k=5, now null"),
        (BY | {"num_new_tokens": 9, "stop": ["."]}, 'num_new_tokens=9, now 10; stop=["."], now []'),
        ({}, "model=null, now a/step_00000005; num_new_tokens=null"),
    ],
)
def test_answers_of_another_model_or_by_other_settings_are_not_joined(there, told, tmp_path):
    out = tmp_path / "out.jsonl"
    lines = [{"index": place, "prompt": "a", "written_by": by} for place, by in enumerate((BY, there))]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{")
    (tmp_path / "out-2.jsonl").touch()
    if told is None:
        assert written_so_far(out, ["a", "a"], by=BY) == {0, 1}
        return
    with pytest.raises(ConfigurationError, match=rf"line 2 was .*: {re.escape(told)}.*--out \S*/out-3.jsonl\.$"):
        written_so_far(out, ["a", "a"], by=BY)
    assert out.read_text().endswith("}\n{"), "it is as it was"


def test_answers_that_do_not_say_what_wrote_them_are_not_joined(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"index": 0, "prompt": "a"}\n')
    with pytest.raises(ConfigurationError, match="line 1 has no written_by, the model and settings of its answer; ne"):
        written_so_far(tmp_path / "out.jsonl", ["a"], by=BY)
