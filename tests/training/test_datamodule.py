"""Batches as pure functions of the step: B micro-batch sequences, T context tokens, G sequences of a step."""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import Counter
from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.data.order import WindowOrder
from lmtrain.data.shards import open_dataset
from lmtrain.data.windows import num_training_windows, training_windows
from lmtrain.errors import DataError
from lmtrain.training.datamodule import TokenDataModule, die_with_parent

CONTEXT_TOKENS = 16
SEQUENCES_PER_STEP = 8
SEED = 5


def serve(data_folder, *, num_ranks=1, rank=0, step=0, micro_batch_sequences=2, num_workers=0):
    batch = Batch(
        context_tokens=CONTEXT_TOKENS,
        tokens_per_step=CONTEXT_TOKENS * SEQUENCES_PER_STEP,
        micro_batch_sequences=micro_batch_sequences,
    )
    plan = plan_batches(batch, num_ranks=num_ranks)
    datamodule = TokenDataModule(folder=data_folder, batch=plan, seed=SEED, num_workers=num_workers)
    datamodule.trainer = SimpleNamespace(global_rank=rank, global_step=step)
    return datamodule, plan


def rank_steps(data_folder, num_steps, **settings):
    """Return what one rank reads in its first steps: one tensor [its sequences, T + 1] a step."""
    datamodule, plan = serve(data_folder, **settings)
    batches = list(islice(datamodule.train_dataloader(), num_steps * plan.accumulation_micro_steps))
    assert {len(batch) for batch in batches} == {plan.micro_batch_sequences}
    return torch.cat(batches).view(num_steps, plan.sequences_per_rank, -1)


def expected_steps(data_folder, first_step, num_steps):
    """Return the windows of some steps, straight from their definition: [steps, G, T + 1]."""
    dataset = open_dataset(data_folder)
    split = dataset.split("train")
    num_windows = num_training_windows(split.num_tokens, CONTEXT_TOKENS)
    order = WindowOrder(num_windows=num_windows, seed=SEED, fingerprint=dataset.manifest.fingerprint)
    positions = np.arange(first_step * SEQUENCES_PER_STEP, (first_step + num_steps) * SEQUENCES_PER_STEP)
    return torch.from_numpy(training_windows(split, order(positions), CONTEXT_TOKENS)).view(num_steps, -1, 17)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batch_sequences", [1, 2, None])
def test_the_slices_of_the_ranks_join_to_the_windows_of_each_step(data_folder, num_ranks, micro_batch_sequences):
    ranks = [
        rank_steps(data_folder, 3, num_ranks=num_ranks, rank=rank, micro_batch_sequences=micro_batch_sequences)
        for rank in range(num_ranks)
    ]
    assert torch.equal(torch.cat(ranks, dim=1), expected_steps(data_folder, 0, 3))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_loader_starts_at_the_trainer_s_step(data_folder, num_ranks):
    ranks = [rank_steps(data_folder, 2, num_ranks=num_ranks, rank=rank, step=7) for rank in range(num_ranks)]
    assert torch.equal(torch.cat(ranks, dim=1), expected_steps(data_folder, 7, 2))


def test_an_epoch_reads_every_window_once_and_the_next_one_in_another_order(data_folder):
    split = open_dataset(data_folder).split("train")
    num_windows = num_training_windows(split.num_tokens, CONTEXT_TOKENS)
    every_window = training_windows(split, np.arange(num_windows), CONTEXT_TOKENS)
    steps = rank_steps(data_folder, 2 * num_windows // SEQUENCES_PER_STEP).reshape(-1, 17)
    epochs = steps[:num_windows].tolist(), steps[num_windows : 2 * num_windows].tolist()
    assert len(steps) >= 2 * num_windows - SEQUENCES_PER_STEP
    assert sorted(epochs[0]) == sorted(every_window.tolist())
    assert epochs[0][: num_windows // 2] != epochs[1][: num_windows // 2]


def test_loader_processes_change_nothing(data_folder):
    settings = {"num_ranks": 2, "rank": 1, "step": 3}
    assert torch.equal(
        rank_steps(data_folder, 3, num_workers=0, **settings), rank_steps(data_folder, 3, num_workers=2, **settings)
    )


def held_out(data_folder, num_ranks, *, max_tokens=None, split="validation"):
    ranks = [
        list(serve(data_folder, num_ranks=num_ranks, rank=rank)[0].held_out_batches(split, max_tokens=max_tokens))
        for rank in range(num_ranks)
    ]
    return ranks, [batch for rank in ranks for batch in rank]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("max_tokens", [None, 300, 17, 2])
def test_every_held_out_token_but_the_first_is_predicted_once_over_all_ranks(data_folder, num_ranks, max_tokens):
    split = open_dataset(data_folder).split("validation")
    ids = split.window(0, min(max_tokens or split.num_tokens, split.num_tokens)).tolist()
    predicted = Counter()
    for inputs, targets in held_out(data_folder, num_ranks, max_tokens=max_tokens)[1]:
        valid = targets != -100
        predicted.update(zip(inputs[valid].tolist(), targets[valid].tolist(), strict=True))
        follows = valid[:, 1:]  # inside a row the model reads what it has just been asked for
        assert torch.equal(inputs[:, 1:][follows], targets[:, :-1][follows])
    assert predicted == Counter(pairwise(ids))


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("max_tokens", [None, 50, 17])
def test_every_rank_has_as_many_held_out_batches_of_the_same_shape(data_folder, num_ranks, max_tokens):
    ranks, batches = held_out(data_folder, num_ranks, max_tokens=max_tokens)
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) > 0
    assert len({(inputs.shape, targets.shape) for inputs, targets in batches}) == 1
    assert {tensor.dtype for batch in batches for tensor in batch} == {torch.int64}


def test_an_unknown_split_is_refused(data_folder):
    with pytest.raises(DataError, match=r"no split 'valid'.*Did you mean 'validation'"):
        list(serve(data_folder)[0].held_out_batches("valid"))


def _start_a_child_that_dies_with_us(pipe):
    child = multiprocessing.get_context("fork").Process(target=_report_and_wait, args=(pipe,))
    child.start()
    child.join()


def _report_and_wait(pipe):
    die_with_parent(0)
    pipe.send(os.getpid())
    signal.pause()


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_loader_process_is_gone_when_its_trainer_was_killed():
    receiver, sender = multiprocessing.Pipe(duplex=False)
    trainer = multiprocessing.get_context("fork").Process(target=_start_a_child_that_dies_with_us, args=(sender,))
    trainer.start()
    child = receiver.recv()
    sender.close()
    os.kill(trainer.pid or 0, signal.SIGKILL)
    trainer.join()
    try:
        assert receiver.poll(10), "the pipe stays open as long as the child lives"
        with pytest.raises(EOFError):
            receiver.recv()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
