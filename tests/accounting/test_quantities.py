import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.quantities import (
    format_at_most,
    format_quantity,
    parse_quantity,
    parse_whole,
)
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("20M", "budget.tokens", 20_000_000),
        ("1.5B", "budget.tokens", 1_500_000_000),
        ("4K", "batch.tokens_per_step", 4_000),
        ("4Ki", "batch.tokens_per_step", 4_096),
        ("15.6T", "budget.tokens", 15_600_000_000_000),
        ("3e-4", "optimizer.lr", 3e-4),
        ("2h", "timeout_seconds", 7_200),
        ("1h30min", "timeout_seconds", 5_400),
        ("250ms", "interval_seconds", 0.25),
        ("90min", "budget.hours", 1.5),
        ("80GiB", "limit_bytes", 85_899_345_920),
        ("80GB", "limit_bytes", 80_000_000_000),
        ("1TiB", "memory_gib", 1_024),
        ("$500", "budget.usd", 500),
        ("500 USD", "budget.usd", 500),
        ("50K", "cluster.device_hours_per_failure", 50_000),
    ],
)
def test_quantity_is_read_in_the_unit_its_key_ends_with(text, key, expected):
    assert parse_quantity(text, key) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("nonsense", "key"),
    [
        ("20X", "budget.tokens"),
        ("", "budget.tokens"),
        ("4K4", "budget.tokens"),
        ("-20M", "budget.tokens"),
        ("$5", "budget.tokens"),
        ("2h", "budget.tokens"),
        ("1e999", "budget.tokens"),
        ("5GB", "timeout_seconds"),
        ("1h30", "timeout_seconds"),
        (True, "budget.tokens"),
        (float("nan"), "budget.tokens"),
    ],
)
def test_nonsense_is_refused_with_its_key_and_value(nonsense, key):
    with pytest.raises(ConfigurationError) as refusal:
        parse_quantity(nonsense, key)
    assert str(refusal.value).startswith(f"{key}={nonsense} is not ")
    assert "write it as" in str(refusal.value)


@given(st.text(alphabet="0123456789.eE+-_ kKMGiBhmins$", max_size=30))
def test_any_text_is_a_finite_number_or_a_configuration_error(text):
    for key in ("tokens", "wait_seconds", "limit_bytes", "usd"):
        with contextlib.suppress(ConfigurationError):
            assert 0 <= parse_quantity(text, key) < float("inf")


@given(st.integers(min_value=1, max_value=10**15))
def test_what_is_written_reads_back_to_its_last_digit(number):
    assert parse_quantity(format_quantity(number)) == pytest.approx(number, rel=0.06)


@pytest.mark.parametrize(("value", "fix"), [(0, "Did you mean 1"), ("-1", "at least 0"), (1.5, "Did you mean 2")])
def test_a_whole_number_is_one_of_at_least_1(value, fix):
    with pytest.raises(ConfigurationError, match=fix):
        parse_whole(value, "batch.context_tokens")
    assert parse_whole("2K", "batch.context_tokens") == 2000


@given(st.floats(min_value=1, max_value=1e30))
def test_a_limit_is_written_as_at_most_it_and_no_more_than_a_hundredth_less(limit):
    written = parse_quantity(format_at_most(limit), "tokens")
    assert 0.5 * limit < written <= limit
    assert limit < 1000 or 0.98 * limit < written


@pytest.mark.parametrize("value", [{"_target_": "os.system"}, [1], None, True, math.nan, math.inf, 10**400])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ConfigurationError, match=r"^budget\.steps=.* is not a number; write it as"):
        parse_quantity(value, "budget.steps")


@pytest.mark.parametrize(
    ("usd", "written"),
    [(0, "$0.00"), (0.01234, "$0.0123"), (1.237, "$1.24"), (9.999, "$10.0"), (12.345, "$12.3"), (12_936.6, "$12,937")],
)
def test_dollars_below_a_hundred_have_three_digits(usd, written):
    assert format_quantity(usd, "usd") == written
