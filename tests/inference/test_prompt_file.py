import json

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
        (b'{"prompt": "a"}\n\nnot json', r"in.jsonl:3 is not JSON"),
        (b'{"text": "a"}', r"prompt"),
        (b'["a"]', r"in.jsonl:1 must be a JSON object"),
        (b"\xff", r"in.jsonl:1 is not JSON"),
        (b"[" * 100_000, r"in.jsonl:1 is not JSON"),
        (b'{"prompt": "\\ud800"}', r"in.jsonl:1 is not JSON .*surrogates"),
        (b"\n", r"in.jsonl is empty"),
    ],
)
def test_a_file_of_anything_else_is_refused(content, message, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_prompts(tmp_path / "in.jsonl")


def test_half_a_line_is_cut_off(tmp_path):
    out = tmp_path / "out.jsonl"
    assert written_so_far(out, ["a"], by={}) == set()
    whole = '{"index": 1, "prompt": "b", "written_by": {}}\n'
    out.write_text(whole + '{"index": 0, "pro')
    assert written_so_far(out, ["a", "b"], by={}) == {1}
    assert out.read_text() == whole


BY = {"model": "a/step_00000005", "sha256": "1f", "num_new_tokens": 10, "temperature": 0.8, "top_k": None, "stop": []}


@pytest.mark.parametrize("changes", [{}, {"sha256": "2e"}, {"num_new_tokens": 9, "stop": ["."]}, None])
def test_answers_of_another_model_or_by_other_settings_are_not_joined(changes, tmp_path):
    out = tmp_path / "out.jsonl"
    lines = [
        {"index": place, "prompt": "a", "written_by": by} for place, by in enumerate((BY, {**BY, **(changes or {})}))
    ]
    if changes is None:
        del lines[1]["written_by"]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{")
    if changes == {}:
        assert written_so_far(out, ["a", "a"], by=BY) == {0, 1}
        return
    with pytest.raises(ConfigurationError, match=r":2 .*name a new file"):
        written_so_far(out, ["a", "a"], by=BY)
    assert out.read_text().endswith("}\n{"), "it is as it was"
