import pytest

from lmtrain.data.mixture_settings import Phase, mean_shares, parse_schedule, parse_sources
from lmtrain.errors import ConfigurationError

SOURCES = {"web": {"path": "a", "weight": 0.7}, "math": {"path": "b", "weight": 0.3}}


def test_sources_and_schedule_are_read():
    sources = parse_sources(SOURCES)
    assert sources["web"].path == "a"
    assert parse_sources({"web": {"path": "a"}})["web"].weight == 1.0
    phases = parse_schedule(sources, [{"from": 0.9, "weights": {"math": 2}}])
    assert phases == (
        Phase(start=0.0, weights={"web": 0.7, "math": 0.3}), Phase(start=0.9, weights={"web": 0.0, "math": 2.0})
    )  # fmt: skip
    assert "; ".join(phase.describe() for phase in phases) == "web 0.7, math 0.3; from 0.9: web 0, math 1"


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({}, r"data\.sources is empty; .*data\.sources\.web\.path=FOLDER"),
        ({"web": 3}, r"data\.sources\.web=3 is not a source"),
        ({"web": {"weight": 1}}, r"data\.sources\.web\.path has no value"),
        ({"web": {"path": "a", "wieght": 1}}, r"data\.sources\.web\.wieght=1: .*Did you mean 'weight'"),
        ({"web": {"path": "a", "weight": -0.5}}, r"data\.sources\.web\.weight=-0\.5 is not a weight"),
        ({"web": {"path": "a", "weight": "much"}}, r"data\.sources\.web\.weight=much is not a weight"),
        ({"web": {"path": "a", "weight": float("nan")}}, r"weight=nan is not a weight"),
        ({"web": {"path": "a", "weight": True}}, r"weight=True is not a weight"),
    ],
)
def test_a_source_that_is_none_is_refused(sources, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_sources(sources)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([{"from": 0, "weights": {"web": 1}}], r"data\.schedule\.0\.from=0 is not a fraction of the run after 0"),
        ([{"from": 1.5, "weights": {"web": 1}}], r"from=1\.5 is not a fraction"),
        ([{"from": x, "weights": {"web": 1}} for x in (0.9, 0.5)], r"schedule\.1\.from=0\.5 .*after 0\.9"),
        ([{"weights": {"web": 1}}], r"from=None is not a fraction"),
        ([{"from": 0.9, "weights": {"mth": 1}}], r"weights\.mth=1: there is no such source; .*Did you mean 'math'"),
        ([{"from": 0.9, "weights": {"math": -1}}], r"schedule\.0\.weights\.math=-1 is not a weight"),
        ([{"from": 0.9, "weights": {}}], r"data\.schedule\.0\.weights: web=0, math=0 are all 0"),
        ([{"from": 0.9, "wait": {}}], r"data\.schedule\.0\.wait=\{\}: a phase has from and weights"),
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused(schedule, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_schedule(parse_sources(SOURCES), schedule)


def test_a_source_that_is_never_read_is_refused_and_one_for_the_tail_is_not():
    sources = parse_sources({"web": {"path": "a"}, "math": {"path": "b", "weight": 0}})
    with pytest.raises(ConfigurationError, match=r"data\.sources\.math\.weight=0: math is never read; leave it out"):
        parse_schedule(sources, [])
    assert len(parse_schedule(sources, [{"from": 0.5, "weights": {"math": 1}}])) == 2


def test_weights_too_far_apart_are_refused():
    with pytest.raises(ConfigurationError, match=r"web=1, math=1e-09: weight 1e-09 is below 1/65,536"):
        parse_schedule(parse_sources({"web": {"path": "a"}, "math": {"path": "b", "weight": 1e-9}}), [])


def test_a_sources_share_of_the_run_is_the_mean_over_its_phases():
    phases = parse_schedule(parse_sources(SOURCES), [{"from": 0.75, "weights": {"math": 2}}])
    shares = mean_shares(phases)
    assert sum(shares.values()) == pytest.approx(1)
    first = phases[0].weights["math"] / sum(phases[0].weights.values())
    assert shares["math"] == pytest.approx(0.75 * first + 0.25)
