import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.inference.tools.user_functions import load_function


def test_a_function_of_a_file_or_a_module_is_called_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text("def double(x):\n    return 2 * x\n")
    name, function = load_function(f"{tmp_path}/mine.py:double")
    assert (name, function(4)) == ("double", 8)
    assert load_function("math:sqrt")[1](9) == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mine.py", "names no function; nearest valid"),
        ("no_such_file.py:f", "no_such_file.py cannot be read"),
        ("no_such_module:f", "cannot be read: No module"),
        ("math:sqr", "has no function sqr"),
        ("broken.py:f", "broken.py cannot be read: 1"),
    ],
)
def test_what_is_no_function_is_refused(tmp_path, monkeypatch, spec, message):
    (tmp_path / "broken.py").write_text("raise KeyError(1)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        load_function(spec)
