import pytest

from lmtrain.cli.commands.fleet_terms import read_dtype, read_terms
from lmtrain.errors import ConfigurationError


def test_amounts_are_numbers_days_are_hours_and_null_is_unknown():
    words = ["fleet.flops=3.8e25", "fleet.days=2", "fleet.mfu=null", "fleet.usd=$1M", "fleet.device=NVIDIA L4"]
    assert read_terms(words) == {"flops": 3.8e25, "hours": 48, "mfu": None, "usd": 1e6, "device": "NVIDIA L4"}


@pytest.mark.parametrize("word", ["0.3-0.5", "0.3..0.5", ".3-.5", "0.3 - 0.5"])
def test_a_range_has_its_ends_and_what_lies_between(word):
    assert read_terms([f"fleet.mfu={word}"]) == {"mfu": (0.3, 0.35, 0.4, 0.45, 0.5)}


def test_a_power_is_no_range():
    assert read_terms(["fleet.mfu=4e-1", "fleet.tokens_per_parameter=20"]) == {"mfu": 0.4, "tokens_per_parameter": 20}


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("30%-50%", "fleet.mfu=0.3-0.5"),
        ("30-50%", "fleet.mfu=0.3-0.5"),
        ("0.5-0.3", "fleet.mfu=0.3-0.5"),
        ("0.3,0.4,0.5", "fleet.mfu=0.3-0.5"),
        ("30-50", "write it as fleet.mfu=0.3-0.5"),
        ("0.3-", "write it as"),
    ],
)
def test_what_is_nearly_a_range_is_refused_with_the_range(word, nearest):
    with pytest.raises(ConfigurationError) as refused:
        read_terms([f"fleet.mfu={word}"])
    assert nearest in str(refused.value)


def test_other_people_s_words_are_known():
    for word, ours in (("gpu_hours", "device_hours"), ("compute", "flops"), ("ratio", "tokens_per_parameter")):
        with pytest.raises(ConfigurationError, match=f"Did you mean '{ours}'"):
            read_terms([f"fleet.{word}=1"])
    assert read_dtype("fp8") == "fp8"
