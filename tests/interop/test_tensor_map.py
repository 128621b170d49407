"""Every tensor of ours is covered exactly once by theirs, for every kind of model."""

import pytest
import torch

from lmtrain.interop.model_settings import build
from lmtrain.interop.tensor_map import map_tensors
from tests.interop.test_hf_export import OURS, settings_of


@pytest.mark.parametrize("name", OURS)
def test_parts_cover_each_tensor_exactly_once(name):
    for tensor in map_tensors(build(settings_of(name)), OURS[name][0]):
        covered = torch.zeros(tensor.shape)
        for part in tensor.parts:
            part.of(covered).add_(1)
            assert part.of(covered).shape == tensor.part_shape(part)
        assert bool((covered == 1).all()), tensor.name


@pytest.mark.parametrize("name", OURS)
def test_names_of_theirs_are_those_of_a_saved_model(name, tmp_path):
    from tests.interop.test_hf_export import exported, load, weights_of

    exported(name, tmp_path / "out")
    load(tmp_path / "out").save_pretrained(tmp_path / "theirs")
    assert weights_of(tmp_path / "out").keys() == weights_of(tmp_path / "theirs").keys()
