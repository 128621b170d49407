import json
from contextlib import ExitStack

from lmtrain.callbacks.text_samples import TextSamples, chat_opening, has_chat_style, up_to_the_end
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import render
from lmtrain.training.weight_average import WeightAverage
from tests.callbacks.tiny_run import AtStep
from tests.full_disk import full_disk


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


def test_a_prompt_that_holds_a_secret_is_kept_without_it(make_run, monkeypatch):
    monkeypatch.setenv("CANARY_TOKEN", "canary-1-of-many")
    run = make_run(steps=1)
    train(run, prompt="the canary-1-of-many ")
    assert samples(run)[0]["prompt"] == "the ${oc.env:CANARY_TOKEN} "


def test_the_average_of_the_weights_speaks_where_there_is_one(make_run):
    run = make_run(steps=3)
    module = run.module(weight_average=WeightAverage(decay=0.9))
    sampled = TextSamples(num_new_tokens=5, temperature=0.0, context=run.context)
    zero = AtStep(3, lambda _: [parameter.zero_() for parameter in module.weight_average.parameters()])
    run.fit(zero, sampled, TokenBudget(context=run.context), module=module)
    assert samples(run)[0]["text"] == "\0" * 5, "weights of zero always say the first byte"
    assert module.language_model.head.weight.abs().sum() > 0


def test_a_full_disk_costs_a_sample_and_not_the_run(make_run, caplog):
    run = make_run(steps=4)
    sampled = TextSamples(num_new_tokens=5, every_steps=2, context=run.context)
    full = ExitStack()
    fill = AtStep(1, lambda _: full.enter_context(full_disk(room_bytes=10)))
    free = AtStep(3, lambda _: full.close())
    run.fit(fill, free, sampled, TokenBudget(context=run.context))
    assert [sample["step"] for sample in samples(run)] == [4]
    assert "The sample of step 2 is lost" in caplog.text


def test_where_conversations_are_learned_a_users_turn_is_answered():
    tokenizer = ByteLevelTokenizer(vocab_size=300, chat=True)
    assert has_chat_style(tokenizer)
    assert not has_chat_style(ByteLevelTokenizer())
    opening = chat_opening(tokenizer, "Hello")
    ids, _ = render(tokenizer, [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}])
    assert opening == [tokenizer.end_of_text_id, *ids[: len(opening) - 1]]
    assert up_to_the_end(ids[len(opening) - 1 :].tolist(), tokenizer) == list(b"Hi.")
