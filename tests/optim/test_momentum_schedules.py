import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.optim.momentum_schedules import none, rise_and_fall

MUON = {"initial": 0.85, "final": 0.90, "warmup_steps": 400, "warmdown_fraction": 0.65}


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.85), (200, 0.91), (400, 0.97), (700, 0.97), (701, 0.97 - 0.07 / 1300), (1350, 0.935), (2000, 0.90)],
)
def test_muon_s_momentum_passes_through_its_published_points(step: int, expected: float) -> None:
    assert rise_and_fall(step, 2000, 0.97, **MUON) == pytest.approx(expected, abs=1e-15)


def test_it_stays_at_its_end_past_the_end() -> None:
    for step in (2000, 2001, 10**9):
        assert rise_and_fall(step, 2000, 0.97, **MUON) == pytest.approx(0.90)


def test_where_both_ramps_overlap_the_lower_counts() -> None:
    values = [rise_and_fall(step, 500, 0.97, **MUON) for step in range(501)]
    assert values[0] == 0.85
    assert values[-1] == pytest.approx(0.90)
    assert max(values) < 0.97


def test_no_ramp_leaves_the_optimizer_s_momentum() -> None:
    assert rise_and_fall(3, 10, 0.95, initial=0.0, final=0.0, warmup_steps=0, warmdown_fraction=0.0) == 0.95
    assert none() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial": 1.0}, r"momentum_schedule\.initial=1\.0 is not at least 0 and below 1"),
        ({"final": -0.1}, r"momentum_schedule\.final=-0\.1 is not"),
        ({"warmup_steps": -1}, r"momentum_schedule\.warmup_steps=-1 is negative; nearest valid: 0"),
        ({"warmdown_fraction": 1.2}, r"momentum_schedule\.warmdown_fraction=1\.2 .* nearest valid: 1\."),
    ],
)
def test_nonsense_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        rise_and_fall(0, 10, 0.95, **{**MUON, **settings})  # pyright: ignore[reportArgumentType]
