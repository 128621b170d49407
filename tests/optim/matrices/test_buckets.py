"""Weights too many for one bucket come in full ones of one shape, in the same order on every rank."""

import torch

from lmtrain.optim.muon_update import buckets


def test_weights_go_together_where_they_fit_and_by_shape_where_not() -> None:
    square, tall, large = (4, 4), (8, 2), (2, 4, 8)
    weights = [torch.empty(shape) for shape in (square, tall, square, large, square, tall)]
    places = {id(weight): place for place, weight in enumerate(weights)}

    def found(num_values: int) -> list[list[int]]:
        return [[places[id(weight)] for weight in bucket] for bucket in buckets(weights, num_values=num_values)]

    assert found(5 * 16 + 64) == [[0, 1, 2, 3, 4, 5]]
    assert found(5 * 16 + 63) == [[0, 2, 4], [1, 5], [3]]
    assert found(32) == [[0, 2], [4], [1, 5], [3]]
    assert found(1) == [[0], [2], [4], [1], [5], [3]]
