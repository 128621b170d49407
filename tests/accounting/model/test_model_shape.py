from dataclasses import FrozenInstanceError, replace

import pytest

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape

SHAPE = ModelShape(10, 2, 8, 10, (AttentionShape(num_heads=2, head_width=4),))


def test_a_layer_sees_the_whole_context_unless_told():
    assert SHAPE.attention[0].window_tokens is None


def test_shapes_compare_by_value_and_cannot_change():
    assert replace(SHAPE) == SHAPE
    with pytest.raises(FrozenInstanceError):
        SHAPE.num_parameters = 3  # pyright: ignore[reportAttributeAccessIssue]
