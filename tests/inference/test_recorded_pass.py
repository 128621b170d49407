"""A pass from the record is bit for bit the model's own, whatever the model is made of."""

import pytest
import torch

from lmtrain.inference import recorded_pass
from tests.inference.cached import FAMILIES, build, engine, greedy, prompts


def logits_of(model, *, is_recorded, lengths=(5, 19, 11)):
    """Return every pass's logits as texts of unequal prompts end one after the other, and the passes."""
    one = engine(model, block_tokens=4)
    passes, seen = one.read, []
    if not is_recorded:
        passes.stop()
    one.read = lambda *given: seen.append(passes(*given).clone()) or seen[-1]
    for place, prompt in enumerate(prompts(*lengths)):
        one.submit(greedy(prompt, 6 + 3 * place))
    while not one.is_idle:
        one.step()
    return seen, passes


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_from_the_record_are_the_models_to_the_last_bit(family):
    model = build(family)
    own, _ = logits_of(model, is_recorded=False)
    recorded, passes = logits_of(model, is_recorded=True)
    assert all(map(torch.equal, own, recorded))
    assert passes.recorded_numbers == ([] if family == "mixture" else [3, 2, 1])  # experts depend on values


def test_records_keep_to_their_memory(monkeypatch):
    _, passes = logits_of(build("llama"), is_recorded=True)
    monkeypatch.setattr(recorded_pass, "MAX_BYTES", passes.num_bytes - 1)
    _, tight = logits_of(build("llama"), is_recorded=True)
    assert tight.recorded_numbers == [2, 1]
    monkeypatch.setattr(recorded_pass, "MAX_BYTES", 1)
    _, none = logits_of(build("llama"), is_recorded=True)
    assert none.num_bytes == 0
