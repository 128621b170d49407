import json

import pytest

from lmtrain.callbacks.text_samples import TextSamples
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import ConfigurationError


def samples(run):
    return [json.loads(line) for line in (run.context.folder / "samples.jsonl").read_text().splitlines()]


def train(run, **settings):
    run.fit(
        TextSamples(num_new_tokens=5, temperature=0.0, context=run.context, **settings),
        TokenBudget(context=run.context),
    )


def test_a_sample_continues_the_prompt_after_the_last_step(make_run):
    run = make_run(steps=3)
    train(run, prompt="the ")
    (sample,) = samples(run)
    assert (sample["step"], sample["prompt"]) == (3, "the ")
    assert sample["text"]
    assert not sample["text"].startswith("the the")


def test_samples_come_during_the_run_where_asked(make_run):
    run = make_run(steps=5)
    train(run, every_steps=2)
    assert [sample["step"] for sample in samples(run)] == [2, 4, 5]


def test_sampling_more_tokens_than_the_context_holds_works(make_run):
    run = make_run(steps=1)
    run.fit(TextSamples(num_new_tokens=100, context=run.context), TokenBudget(context=run.context))
    assert samples(run)[0]["text"]


def test_zero_tokens_are_refused(make_run):
    with pytest.raises(ConfigurationError, match="num_new_tokens=0"):
        TextSamples(num_new_tokens=0, context=make_run().context)
