import pytest

from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION, trade_off


def test_every_trade_spends_the_same_compute():
    for choice in trade_off(1e22):
        assert 6 * choice.num_parameters * choice.tokens == pytest.approx(1e22)
        assert choice.tokens_per_parameter == pytest.approx(choice.tokens / choice.num_parameters)


def test_the_surface_is_lowest_near_twenty_tokens_a_parameter():
    """The replication's own finding: its optimum at Chinchilla's compute is near 20 tokens a parameter."""
    flops = 5.76e23
    losses = {ratio: _loss(flops, ratio) for ratio in (2, 5, 10, 20, 40, 80, 200)}
    assert min(losses, key=lambda ratio: losses[ratio]) in (10, 20, 40)


def _loss(flops, tokens_per_parameter):
    num_parameters = (flops / (6 * tokens_per_parameter)) ** 0.5
    return REPLICATION.loss(num_parameters, tokens_per_parameter * num_parameters)
