import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.models.dimensions import check_context, check_heads, check_positive

WIDTH_128 = {"width": 128, "num_heads": 3}
LLAMA_3 = {"width": 4096, "num_heads": 32, "num_kv_heads": 8}
REFUSED = [
    (WIDTH_128, "model.width=126 or 132, or model.num_heads=2 or 4"),
    (WIDTH_128 | {"width": 129}, "model.width=126 or 132"),
    (WIDTH_128 | {"width": 4, "num_heads": 6, "is_rotary": False}, "model.width=6, or model.num_heads=2 or 4"),
    (LLAMA_3 | {"num_heads": 40}, "model.width=4080 or 4160, or model.num_heads=32 or 64"),
    (LLAMA_3 | {"num_kv_heads": 5}, "model.num_kv_heads=4 or 8"),
    (LLAMA_3 | {"num_heads": 12}, "model.num_heads=8 or 16"),
    (LLAMA_3 | {"num_heads": 2}, "model.num_kv_heads=1 or 2, or model.num_heads=8 or 16"),
    ({"width": None, "num_heads": 12, "num_kv_heads": 8}, "model.num_kv_heads=6 or 12, or model.num_heads=8 or 16"),
]


@pytest.mark.parametrize(("heads", "nearest"), REFUSED)
def test_the_nearest_heads_and_widths_keep_all_rules(heads, nearest):
    with pytest.raises(ConfigurationError) as refusal:
        check_heads(**heads)
    assert str(refusal.value).partition("; nearest valid: ")[2] == f"{nearest}."
    for word in nearest.removesuffix(".").split(", or "):
        name, _, numbers = word.removeprefix("model.").partition("=")
        for number in numbers.split(" or "):
            check_heads(**heads | {name: int(number)})


def test_odd_heads_are_refused_of_rotary_pairs_alone():
    with pytest.raises(ConfigurationError, match=r"width=129 over model\.num_heads=3 gives heads of 43, not even"):
        check_heads(width=129, num_heads=3)
    check_heads(width=129, num_heads=3, is_rotary=False)


def test_what_divides_and_fits_passes():
    check_heads(width=128, num_heads=4)
    check_positive(width=1)
    check_context(8, 8)


def test_zero_layers_are_refused():
    with pytest.raises(ConfigurationError, match=r"model\.num_layers=0 is below 1"):
        check_positive(width=1, num_layers=0)


def test_context_over_the_limit_names_both_keys():
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens=9 is over model\.max_context_tokens=8"):
        check_context(9, 8)
