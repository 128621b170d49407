import pytest
import torch

from lmtrain.inference.wanted_rows import only_rows
from tests.inference.cached import FAMILIES, build, engine, greedy, prompts, write


@pytest.mark.parametrize("family", FAMILIES)
def test_wanted_rows_are_those_of_the_whole_pass(family):
    model, rows = build(family), [3, 10, 18]
    tokens = torch.tensor(prompts(19))
    with torch.no_grad():
        whole = model.hidden_states(tokens)
        with only_rows(model.last_feed_forward, rows, num_rows=19):
            few = model.hidden_states(tokens)
        torch.testing.assert_close(few[:, rows], whole[:, rows], atol=1e-5, rtol=1e-5)  # sums in another order
        assert torch.equal(model.hidden_states(tokens), whole)  # nothing stays behind


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_read_without_the_last_feed_forward_but_for_their_ends(family):
    model, seen = build(family), list[int]()
    model.last_feed_forward.register_forward_hook(lambda _, given, result: seen.append(given[0].shape[1]))
    write(engine(model, prefill_tokens=16), [greedy(prompt, 2) for prompt in prompts(5, 19, 30)])
    assert seen == [1, 2, 1, 1, 1]  # 16, 17, 17 and 7 tokens with an end each, and a last single one
