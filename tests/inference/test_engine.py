"""What an engine writes is what the model writes by itself, token for token, whatever else it writes at the time."""

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling import Sampling
from tests.inference.cached import CONTEXT, FAMILIES, build, engine, greedy, prompts, uncached, write


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_of_unequal_prompts_equal_the_uncached_ones(family):
    model = build(family)
    given = prompts(1, 19, 4, 11, 30)
    small = engine(model, prefill_tokens=9, num_texts=3)  # prompts in pieces, texts that wait
    written = write(small, [greedy(prompt, 16) for prompt in given])
    assert [each.new_tokens for each in written] == [uncached(model, prompt, 16) for prompt in given]
    assert {each.finish_reason for each in written} == {"length"}
    assert small.is_idle


@pytest.mark.parametrize("family", ["gpt2", "mistral", "nano"])
def test_a_sliding_text_goes_on_past_the_context_as_the_uncached_one_does(family):
    model = build(family)
    given = prompts(3, CONTEXT - 1, CONTEXT, CONTEXT + 9)
    written = write(
        engine(
            model,
        ),
        [greedy(prompt, 6, slides=True) for prompt in given],
    )
    assert [each.new_tokens for each in written] == [uncached(model, prompt, 6) for prompt in given]


def test_a_text_that_does_not_slide_ends_with_the_context():
    model = build("llama")
    (prompt,) = prompts(CONTEXT - 3)
    (written,) = write(engine(model), [greedy(prompt, 100)])
    assert written.new_tokens == uncached(model, prompt, 4)  # the last token is read by nobody
    assert written.finish_reason == "length"


def test_a_seed_writes_the_same_whatever_else_is_written():
    model = build("nano")
    (prompt, *others) = prompts(6, 13, 2, 20)

    def ask(tokens, seed, index=0):
        return Request(prompt=tokens, num_new_tokens=12, sampling=Sampling(temperature=1.5), seed=seed, index=index)

    (alone,) = write(engine(model), [ask(prompt, 7)])
    crowd = write(
        engine(
            model,
        ),
        [*(ask(other, 7) for other in others), ask(prompt, 7), ask(prompt, 8)],
    )
    assert crowd[3].new_tokens == alone.new_tokens != crowd[4].new_tokens
    (second,) = write(engine(model), [ask(prompt, 7, index=1)])
    assert second.new_tokens != alone.new_tokens


def test_log_probabilities_are_the_models_own():
    model = build("llama")
    (prompt,) = prompts(5)
    request = Request(prompt=prompt, num_new_tokens=3, sampling=Sampling(temperature=0.3), seed=1, num_likeliest=2)
    (written,) = write(engine(model), [request])
    with torch.no_grad():
        expected = model(torch.tensor([written.tokens])).log_softmax(dim=-1)[0]
    for place, score in enumerate(written.scores):
        row = expected[len(prompt) - 1 + place]
        assert score.log_probability == pytest.approx(float(row[score.token]), abs=1e-5)
        assert [token for token, _ in score.likeliest] == row.topk(2).indices.tolist()


def test_cancelled_texts_free_their_memory_and_change_nobody_elses():
    model = build("llama")
    one, *rest = prompts(6, 9, 12, 4)
    busy = engine(model, num_texts=3)
    first, *others = [busy.submit(greedy(prompt, 10)) for prompt in (one, *rest)]
    busy.step()
    for other in others:  # two that are running, one that waits
        busy.cancel(other)
        busy.cancel(other)
    while not busy.is_idle:
        busy.step()
    assert first.new_tokens == uncached(model, one, 10)
    assert {other.finish_reason for other in others} == {"cancelled"}


@pytest.mark.parametrize("family", ["llama_tiny", "nano", "mistral"])
def test_a_common_beginning_is_read_once(family):
    model = build(family)
    beginning, *rests = prompts(20, 3, 5, 9)
    given = [beginning + rest for rest in rests]
    one = engine(model)
    written = write(one, [greedy(prompt, 8) for prompt in given])
    assert [each.new_tokens for each in written] == [uncached(model, prompt, 8) for prompt in given]
    assert [each.num_shared for each in written] == [0, 20, 20]
    (again,) = write(one, [greedy(given[0], 8)])  # kept after its texts have ended
    assert again.new_tokens == written[0].new_tokens
    assert again.num_shared == len(given[0]) - 1
    (second,) = write(one, [greedy([*again.tokens, 1, 2], 6)])  # a conversation goes on in its slot
    assert second.new_tokens == uncached(model, [*again.tokens, 1, 2], 6)
    assert second.num_shared == len(again.tokens) - 1


@pytest.mark.parametrize("num_left", [1, 2, 5])
def test_texts_that_outlive_others_go_on_as_alone(num_left):
    model = build("llama_tiny")
    given = prompts(*range(3, 11))
    lengths = [16 if place >= 8 - num_left else 2 for place in range(8)]
    written = write(engine(model), [greedy(*each) for each in zip(given, lengths, strict=True)])
    assert [each.new_tokens for each in written] == [
        uncached(model, *each) for each in zip(given, lengths, strict=True)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": []}, "prompt: .*at least one token"),
        ({"prompt": [1] * (CONTEXT + 1)}, f"prompt: .*{CONTEXT}.*{CONTEXT + 1}"),
        ({"prompt": [999]}, "token id 999"),
        ({"sampling": Sampling(logit_bias={-1: 1.0})}, "token id -1"),
        ({"num_new_tokens": 0}, "num_new_tokens: .*got 0"),
    ],
)
def test_impossible_requests_are_refused(change, message):
    one = engine(build("gpt2"))
    with pytest.raises(ConfigurationError, match=message):
        one.submit(Request(**{"prompt": [1], "num_new_tokens": 1, **change}))
    assert one.is_idle
    with pytest.raises(ConfigurationError, match=r"num_texts: .*got 0"):
        EngineLimits(num_texts=0)
