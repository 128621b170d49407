"""What a run shows and logs while it trains."""

import json
from contextlib import ExitStack

import pytest

from lmtrain.callbacks.progress import Progress
from lmtrain.callbacks.run_manifest import RunManifest
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.text_samples import TextSamples, chat_opening, up_to_the_end
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import render
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.training.stopping import StoppedEarly
from lmtrain.training.weight_average import WeightAverage
from tests.callbacks.tiny_run import AtStep
from tests.full_disk import full_disk


def train(run, *callbacks):
    log = StepLog(every_steps=1, context=run.context)
    run.fit(log, *callbacks, Progress(every_seconds=0, context=run.context), TokenBudget(context=run.context))


def test_lines_without_a_terminal_have_no_control_characters(make_run, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = make_run(steps=3)
    train(run, Validation(context=run.context))
    printed = capsys.readouterr().out
    assert not set(printed) & {"\r", "\x1b"}
    lines = printed.splitlines()
    assert lines[0] == "cat: 96 tokens in 3 steps of 32; first step, and compilation where asked…"
    assert lines[1].startswith("step 1/3 | 32 of 96 tokens (33%) | loss 5.")
    assert len(lines) == 1 + 3
    assert lines[-1].startswith("step 3/3 | 96 of 96 tokens (100%)")
    assert "bits/byte" in lines[-1]


@pytest.mark.parametrize(("end", "told"), [(KeyError("crash"), "failed"), (StoppedEarly(2), "stopped")])
def test_a_terminal_gets_a_panel_and_its_cursor_back_after_a_crash(make_run, capsys, monkeypatch, end, told):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    run = make_run(steps=3)

    def crash(_):
        raise end

    with pytest.raises(type(end)):
        train(run, AtStep(2, crash))
    printed = capsys.readouterr().out
    assert "╭─" in printed
    assert "step 2/3" in printed, "done, though this callback's turn had not come"
    assert told in printed
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")  # show cursor after hide cursor


def test_loss_of_accumulated_micro_steps_is_the_loss_of_the_whole_step(make_run):
    losses = []
    for run in (make_run(name="whole", steps=1), make_run(name="parts", steps=1, accumulation_micro_steps=4)):
        run.fit(StepLog(every_steps=1, context=run.context), TokenBudget(context=run.context))
        losses.append(run.points("train/loss")[1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def samples(run):
    return [json.loads(line) for line in (run.context.folder / "samples.jsonl").read_text().splitlines()]


def train_of_text_samples(run, **settings):
    run.fit(
        TextSamples(num_new_tokens=5, temperature=0.0, context=run.context, **settings),
        TokenBudget(context=run.context),
    )


def test_a_sample_continues_the_prompt_after_the_last_step(make_run):
    run = make_run(steps=3)
    train_of_text_samples(run, prompt="the ")
    (sample,) = samples(run)
    assert (sample["step"], sample["prompt"]) == (3, "the ")
    assert sample["text"]
    assert not sample["text"].startswith("the the")


def test_a_prompt_that_holds_a_secret_is_kept_without_it(make_run, monkeypatch):
    monkeypatch.setenv("CANARY_TOKEN", "canary-1-of-many")
    run = make_run(steps=1)
    train_of_text_samples(run, prompt="the canary-1-of-many ")
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
    opening = chat_opening(tokenizer, "Hello")
    ids, _ = render(tokenizer, [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}])
    assert opening == [tokenizer.end_of_text_id, *ids[: len(opening) - 1]]
    assert up_to_the_end(ids[len(opening) - 1 :].tolist(), tokenizer) == list(b"Hi.")


def test_plan_data_and_devices_lie_beside_the_results(make_run):
    run = make_run(steps=1)
    attempt = run.context.folder / "attempts" / "2"
    attempt.mkdir(parents=True)
    run.fit(RunManifest(context=run.context), TokenBudget(context=run.context))
    plan = json.loads((run.context.folder / "plan.json").read_text())
    assert plan["horizon"]["steps"] == 1
    dataset = json.loads((run.context.folder / "dataset.json").read_text())
    assert dataset["fingerprint"] == run.context.dataset.manifest.fingerprint
    assert load_tokenizer(run.context.folder / "tokenizer").fingerprint == run.context.tokenizer.fingerprint
    noted = {"data": str(run.context.dataset.folder), "fingerprint": dataset["fingerprint"]}
    assert json.loads((attempt / "data.json").read_text()) == noted
    devices = json.loads((attempt / "devices.json").read_text())
    assert (devices["type"], devices["num_devices"], devices["precision"]) == ("cpu", 1, "32-true")


def test_a_tokenizer_that_checkpoints_know_is_never_overwritten(make_run):
    run = make_run(steps=1)
    (run.context.folder / "checkpoints" / "step_00000001").mkdir(parents=True)
    ByteLevelTokenizer(vocab_size=900).save(run.context.folder / "tokenizer")
    with pytest.raises(ConfigurationError, match="checkpoints there know its ids alone; start a new run"):
        run.fit(RunManifest(context=run.context))
    assert load_tokenizer(run.context.folder / "tokenizer").vocab_size == 900
