import math

import numpy as np
import pytest
import schedulefree
import torch
from torch.nn import functional as F

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from lmtrain.errors import DataError
from lmtrain.training.weight_average import WeightAverage
from tests.callbacks.tiny_run import TinyModel, TinyRun, make_context, write_dataset


def train(run, *callbacks, **settings):
    return run.fit(*callbacks, TokenBudget(context=run.context), **settings)


def test_a_resumed_run_does_not_measure_before_its_first_step_again(make_run):
    run, longer = make_run(steps=2), make_run(steps=4)
    run.fit(TokenBudget(context=run.context), Checkpoint(context=run.context))
    train(longer, Validation(context=longer.context), checkpoint=run.context.checkpoints_folder / "step_00000002")
    assert list(longer.points("validation/loss")) == [4]


@pytest.mark.parametrize(("changed", "tokens"), [({}, 31), ({"max_tokens": 90}, 89)])
def test_a_longer_run_reads_what_it_read_before_unless_told_otherwise(make_run, changed, tokens):
    run, longer = make_run(steps=1), make_run(steps=4)  # 32 and 128 tokens
    train(run, Validation(context=run.context), Checkpoint(context=run.context))
    checkpoint = run.context.checkpoints_folder / "step_00000001"
    train(longer, Validation(num_passes=3, context=longer.context, **changed), checkpoint=checkpoint)
    read = longer.points("validation/num_bytes")
    assert (read[0], read[1]) == (31, 31)
    assert {read[step] for step in read if step > 1} == {tokens}


def test_bits_per_byte_is_of_the_whole_split_and_agrees_with_torch(make_run):
    run = make_run(steps=10)  # 320 tokens: more than the split
    module = run.module()
    tokens = torch.from_numpy(run.context.dataset.split("validation").window(0, 201).astype("int64"))
    with torch.no_grad():
        nats = F.cross_entropy(module.language_model(tokens[None, :-1])[0], tokens[1:]).item()
    train(run, Validation(context=run.context), module=module)
    assert run.points("validation/loss")[0] == pytest.approx(nats, rel=1e-5)
    assert run.points("validation/bits_per_byte")[0] == pytest.approx(nats / math.log(2), rel=1e-5)  # a byte a token


def test_a_pass_reads_on_to_the_first_words_with_loss(tmp_path):
    mask = np.zeros(201, np.uint8)
    mask[100:110] = 1
    for name, marks in (("marked", mask), ("unmarked", 0 * mask)):
        write_dataset(tmp_path / name, validation_mask=marks)
    run = TinyRun(context=make_context(tmp_path / "run", tmp_path / "marked", steps=1))  # 32 tokens
    train(run, Validation(context=run.context))
    assert run.points("validation/num_bytes")[0] == 10
    assert run.points("validation/read_tokens")[0] == 110
    without = make_context(tmp_path / "other", tmp_path / "unmarked", steps=1)
    with pytest.raises(DataError, match=r"no token with loss in its split 'validation'.*callbacks\.validation=null"):
        Validation(context=without)


def test_training_does_not_notice(make_run):
    losses = []
    for name in ("with", "without"):
        run = make_run(name=name, steps=4)
        extra = [Validation(num_passes=4, context=run.context)] if name == "with" else []
        module = run.module()
        run.fit(StepLog(every_steps=1, context=run.context), *extra, TokenBudget(context=run.context), module=module)
        losses.append(run.points("train/loss"))
        assert module.language_model.training
    assert losses[0] == losses[1]


def test_the_average_of_the_weights_is_measured_beside_them(make_run):
    run = make_run(steps=6)
    module = run.module(weight_average=WeightAverage(decay=0.5))
    train(run, Validation(num_passes=2, context=run.context), module=module)
    raw, averaged = run.points("validation/loss"), run.points("validation/ema_loss")
    assert [*raw] == [*averaged] == [0, 3, 6]
    assert averaged[0] == raw[0]
    assert averaged[6] > raw[6], "behind them, while the loss falls"
    other = run.module(TinyModel())
    other.language_model.load_state_dict(module.weight_average.state_dict())
    tokens = torch.from_numpy(run.context.dataset.split("validation").window(0, 192).astype("int64"))
    with torch.no_grad():
        nats = F.cross_entropy(other.language_model(tokens[None, :-1])[0], tokens[1:]).item()
    assert averaged[6] == pytest.approx(nats, rel=1e-5)
    assert run.points("validation/ema_bits_per_byte")[6] == pytest.approx(nats / math.log(2), rel=1e-5)


def test_a_schedule_free_optimizer_is_measured_where_it_evaluates(make_run):
    run = make_run(steps=6)
    module = run.module(optimizer=lambda model: schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01))
    train(run, Validation(num_passes=2, context=run.context), module=module)
    tokens = torch.from_numpy(run.context.dataset.split("validation").window(0, 192).astype("int64"))
    with torch.no_grad():  # left in evaluation by the end of training
        nats = F.cross_entropy(module.language_model(tokens[None, :-1])[0], tokens[1:]).item()
    assert run.points("validation/loss")[6] == pytest.approx(nats, rel=1e-5)
    assert module.trainer.optimizers[0].param_groups[0]["train_mode"] is False
