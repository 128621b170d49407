import pytest
import torch
from torch import nn

from lmtrain.callbacks.silent_corruption import SilentCorruption, _outliers
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import EnvironmentProblem
from tests.callbacks.tiny_run import TinyModel


class Wrong(TinyModel):
    """Computes with a flipped bit, forward or backward, at one call of its training, counted from 1."""

    def __init__(self, *, call: int, backward: bool = False) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.call, self.backward, self.calls = call, backward, 0

    def features(self, tokens, documents=None):
        hidden = self.dropout(super().features(tokens, documents)[0])
        self.calls += self.training
        if self.calls == self.call and not self.backward:
            hidden = hidden * (1 + 1e-3)
        if self.calls == self.call and self.backward:
            hidden.register_hook(lambda gradient: gradient * (1 + 1e-3))
        return hidden, None


def train(run, model, **settings):
    module = run.module(model)
    callback = SilentCorruption(**settings, context=run.context)
    run.fit(callback, TokenBudget(context=run.context), module=module)
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize(("call", "backward", "named"), [(3, False, "the loss"), (3, True, "embedding.weight")])
def test_a_wrong_result_ends_the_run_with_the_rank_and_the_first_difference_named(make_run, call, backward, named):
    run = make_run(steps=6)
    with pytest.raises(EnvironmentProblem, match=rf"Step 2: .* rank 0 \([^)]*{named}") as stopped:
        train(run, Wrong(call=call, backward=backward), recompute_every_steps=2)  # calls: a step, then twice
    assert stopped.value.exit_code == 3


def test_computing_twice_changes_no_bit_of_the_run_and_off_no_hook_is_there(make_run):
    plain, model = train(make_run(steps=4), Wrong(call=0)), Wrong(call=0)
    checked = train(make_run(steps=4, name="dog"), model, recompute_every_steps=2)
    assert all(torch.equal(one, other) for one, other in zip(plain, checked, strict=True))
    assert model.calls == 4 + 2 * 2
    off = SilentCorruption(context=make_run(steps=4, name="cow").context)
    assert not {name for name in vars(off) if name.startswith("on_")}


def test_the_rank_apart_from_most_is_named_and_both_of_two():
    assert _outliers([7, 7, 8, 7], [[0, 1, 2, 3]]) == [2]
    assert _outliers([7, 8], [[0, 1]]) == [0, 1]
    assert _outliers([7, 7, 9, 9], [[0, 1], [2, 3]]) == []
    assert _outliers([1, 2, 1, 3, 1, 3], [[0, 2, 4], [1, 3, 5]]) == [1]
