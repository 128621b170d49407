import torch

from lmtrain.training.step_timer import StepWitness
from tests.training.short_run import train


def test_gradients_before_and_weights_after_each_step_are_shown_and_the_run_ends(data_folder, tmp_path):
    seen: dict[tuple[int, str], dict[str, torch.Tensor]] = {}

    def see(step, kind, tensors):
        seen[step, kind] = {name: one.detach().clone() for name, one in tensors.items()}

    train(data_folder, tmp_path, steps=10_000, extra=StepWitness(see, num_steps=2))
    assert [*seen] == [(0, "weight"), (1, "gradient"), (1, "weight"), (2, "gradient"), (2, "weight")]
    assert seen[0, "weight"].keys() == seen[1, "gradient"].keys()
    moved = {name for name, one in seen[1, "weight"].items() if not torch.equal(one, seen[2, "weight"][name])}
    assert moved == {name for name, one in seen[2, "gradient"].items() if one.any()}
