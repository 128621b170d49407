import yaml

from lmtrain.launch.yaml_text import to_yaml


def test_values_come_back_in_their_order_and_text_of_several_lines_stands_as_a_block() -> None:
    value = {"z": "no", "a": ["1", 1, None, "x" * 300, "é: #"], "run": "first\nsecond 'x'\n", "t": "end \nx"}
    text = to_yaml(value, {"b": 2})
    first, second = yaml.safe_load_all(text)
    assert (list(first.items()), second) == (list(value.items()), {"b": 2})
    assert "run: |\n  first\n  second 'x'\n" in text
