import itertools

import pytest

from lmtrain.storage import foreign_yaml

STEPS = itertools.pairwise("abcdefghi")
LAUGHS = "a: &a [x]\n" + "\n".join(f"{to}: &{to} [{', '.join([f'*{of}'] * 9)}]" for of, to in STEPS)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[" * 1500, "nested more than 100 deep"),
        ("a: &a [*a]", "nested more than 100 deep"),
        (LAUGHS, "more than 100,000 values"),
        (f"a: &a [{','.join('x' * 1000)}]\nb: [{','.join(['*a'] * 200)}]", "more than 100,000 values"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: [", "expected"),
        ("\x00", "special characters"),
    ],
)  # fmt: skip
def test_a_bomb_or_another_kind_of_yaml_is_a_value_error(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        foreign_yaml.parse(text)


def test_aliases_of_an_ordinary_size_pass() -> None:
    assert foreign_yaml.parse("a: &a [1]\nb: [*a, *a]") == {"a": [1], "b": [[1], [1]]}
