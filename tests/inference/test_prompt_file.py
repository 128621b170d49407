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
        (b'{"prompt": "a"}\nnot json', r"in.jsonl:2 is no JSON"),
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
    assert written_so_far(out, ["a"]) == set()
    out.write_text('{"index": 1, "prompt": "b"}\n{"index": 0, "pro')
    assert written_so_far(out, ["a", "b"]) == {1}
    assert out.read_text() == '{"index": 1, "prompt": "b"}\n'
