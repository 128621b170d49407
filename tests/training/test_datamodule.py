"""Batches as pure functions of the step: B micro-batch sequences, T context tokens, G sequences of a step."""

from collections import Counter
from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.data.manifest import Manifest
from lmtrain.data.order import WindowOrder
from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset
from lmtrain.data.windows import num_training_windows
from lmtrain.errors import ConfigurationError
from lmtrain.training.datamodule import TokenDataModule, mixture

CONTEXT_TOKENS = 16
SEQUENCES_PER_STEP = 8
SEED = 5
ON_CPU = SimpleNamespace(root_device=torch.device("cpu"))


def serve(data_folder, *, num_ranks=1, rank=0, step=0, micro_batch_sequences=2, num_workers=0):
    batch = Batch(
        context_tokens=CONTEXT_TOKENS,
        tokens_per_step=CONTEXT_TOKENS * SEQUENCES_PER_STEP,
        micro_batch_sequences=micro_batch_sequences,
    )
    plan = plan_batches(batch, num_ranks=num_ranks)
    datamodule = TokenDataModule(folder=data_folder, batch=plan, seed=SEED, num_workers=num_workers)
    datamodule.trainer = SimpleNamespace(global_rank=rank, global_step=step, strategy=ON_CPU)
    return datamodule, plan


def rank_steps(data_folder, num_steps, **settings):
    """Return what one rank reads in its first steps: one tensor [its sequences, T + 1] a step."""
    datamodule, plan = serve(data_folder, **settings)
    batches = list(islice(datamodule.train_dataloader(), num_steps * plan.accumulation_micro_steps))
    assert {len(batch) for batch in batches} == {plan.sequences_per_micro_step}
    return torch.cat(batches).view(num_steps, plan.sequences_per_rank, -1)


def expected_steps(data_folder, first_step, num_steps):
    """Return the windows of some steps, straight from their definition: [steps, G, T + 1]."""
    dataset = open_dataset(data_folder)
    split = dataset.split("train")
    num_windows = num_training_windows(split.num_tokens, CONTEXT_TOKENS)
    order = WindowOrder(num_windows=num_windows, seed=SEED, fingerprint=dataset.manifest.fingerprint)
    positions = np.arange(first_step * SEQUENCES_PER_STEP, (first_step + num_steps) * SEQUENCES_PER_STEP)
    windows = split.windows(order(positions) * CONTEXT_TOKENS, CONTEXT_TOKENS + 1)
    return torch.from_numpy(windows).view(num_steps, -1, 17)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batch_sequences", [1, 2, None])
def test_the_slices_of_the_ranks_join_to_the_windows_of_each_step(data_folder, num_ranks, micro_batch_sequences):
    ranks = [
        rank_steps(data_folder, 3, num_ranks=num_ranks, rank=rank, micro_batch_sequences=micro_batch_sequences)
        for rank in range(num_ranks)
    ]
    assert torch.equal(torch.cat(ranks, dim=1), expected_steps(data_folder, 0, 3))


def test_an_epoch_reads_every_window_once_and_the_next_one_in_another_order(data_folder):
    split = open_dataset(data_folder).split("train")
    num_windows = num_training_windows(split.num_tokens, CONTEXT_TOKENS)
    every_window = split.windows(np.arange(num_windows) * CONTEXT_TOKENS, CONTEXT_TOKENS + 1)
    steps = rank_steps(data_folder, 2 * num_windows // SEQUENCES_PER_STEP).reshape(-1, 17)
    epochs = steps[:num_windows].tolist(), steps[num_windows : 2 * num_windows].tolist()
    assert len(steps) >= 2 * num_windows - SEQUENCES_PER_STEP
    assert sorted(epochs[0]) == sorted(every_window.tolist())
    assert epochs[0][: num_windows // 2] != epochs[1][: num_windows // 2]


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


def test_a_loop_without_a_trainer_reads_the_batches_of_a_single_rank(data_folder):
    alone = TokenDataModule(data_folder, context_tokens=CONTEXT_TOKENS, micro_batch_sequences=8, seed=SEED)
    alone.setup()
    batches = list(islice(alone.train_dataloader(), 3))
    assert torch.equal(torch.stack(batches), expected_steps(data_folder, 0, 3))
    of_a_rank, _ = serve(data_folder, micro_batch_sequences=8)
    for (inputs, _), (expected, _) in zip(
        alone.held_out_batches("validation"), of_a_rank.held_out_batches("validation"), strict=True
    ):
        assert torch.equal(inputs, expected)


@pytest.mark.parametrize(
    ("name", "value"), [("context_tokens", 0), ("micro_batch_sequences", 0), ("seed", -1), ("context_tokens", "64")]
)
def test_numbers_out_of_range_are_refused(data_folder, name, value):
    with pytest.raises(ConfigurationError, match=rf"{name}: .*got {value}"):
        TokenDataModule(data_folder, **{name: value})


def serve_mixture(folders, *, num_ranks=1, rank=0, step=0, schedule=None, total_steps=40, **settings):
    """Serve folders mixed 3 to 1, or as a schedule says."""
    plan = BatchPlan(
        context_tokens=CONTEXT_TOKENS,
        sequences_per_micro_step=2,
        accumulation_micro_steps=SEQUENCES_PER_STEP // 2 // num_ranks,
        num_ranks=num_ranks,
    )
    sources = {name: {"path": str(folder), "weight": weight} for name, folder, weight in folders}
    datamodule = mixture(sources=sources, schedule=schedule, batch=plan, seed=SEED, **settings)
    datamodule.total_steps = total_steps
    datamodule.trainer = SimpleNamespace(global_rank=rank, global_step=step, strategy=ON_CPU)
    return datamodule, plan


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory, data_folder):
    """Two data sets whose ids tell them apart: 257 ids of one, 300 above them of the other."""
    folder = tmp_path_factory.mktemp("other")
    ids = np.arange(300, 600).repeat(9)
    ids[99::100] = 256
    splits = {}
    for split in ("train", "validation"):
        writer = ShardWriter(folder, split=split, dtype="uint16", shard_tokens=700)
        writer.append(ids, np.arange(100, 2701, 100))
        splits[split] = writer.close(text_bytes=len(ids))
    tokenizer = open_dataset(data_folder).manifest.tokenizer_fingerprint
    manifest = Manifest("other", dtype="uint16", vocab_size=600, tokenizer_fingerprint=tokenizer, splits=splits)
    write_manifest(folder, manifest)
    return [("made", data_folder, 3), ("other", folder, 1)]


def mixture_steps(two_folders, num_steps, **settings):
    datamodule, plan = serve_mixture(two_folders, **settings)
    batches = list(islice(datamodule.train_dataloader(), num_steps * plan.accumulation_micro_steps))
    return torch.cat(batches).view(num_steps, plan.sequences_per_rank, -1)


def is_other(rows):
    return ((rows.long() >= 300).sum(-1) > 8).long()


def test_a_mixture_keeps_its_weights_at_every_step(two_folders):
    other = is_other(mixture_steps(two_folders, 12))
    assert other.sum(1).tolist() == [2] * 12, "a quarter of the eight windows of each step"


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mixture_is_the_same_at_any_world_size_worker_count_and_start(two_folders, num_ranks, num_workers):
    schedule = [{"from": 0.25, "weights": {"made": 1, "other": 1}}]
    whole = mixture_steps(two_folders, 20, schedule=schedule)
    ranks = [
        mixture_steps(
            two_folders, 9, schedule=schedule, num_ranks=num_ranks, rank=rank, step=7, num_workers=num_workers
        )
        for rank in range(num_ranks)
    ]
    assert torch.equal(torch.cat(ranks, dim=1), whole[7:16])
    assert is_other(whole).sum(1).tolist() == [2] * 10 + [4] * 10


def test_a_longer_budget_moves_no_phase_of_the_steps_already_trained(two_folders):
    schedule = [{"from": 0.5, "weights": {"made": 0, "other": 1}}]
    before = mixture_steps(two_folders, 10, schedule=schedule, total_steps=10)
    longer, plan = serve_mixture(two_folders, schedule=schedule, total_steps=20)
    moved = longer.source_epochs(20)
    longer.go_on(serve_mixture(two_folders, schedule=schedule, total_steps=10)[0].placed_phases, step=10)
    batches = list(islice(longer.train_dataloader(), 20 * plan.accumulation_micro_steps))
    steps = torch.cat(batches).view(20, plan.sequences_per_rank, -1)
    assert torch.equal(steps[:10], before)
    assert is_other(steps).sum(1).tolist() == [2] * 5 + [8] * 15, "the second half of 20 steps begins at their tenth"
    assert longer.source_epochs(20)["made"] == moved["made"] / 2, "5 of its 10 steps"
    longer.go_on([(0, (1.0,))], step=10)
    assert longer.source_epochs(20)["made"] == moved["made"] / 2, "phases of other sources are nobody's"


def test_what_a_run_reads_is_named_so_that_another_is_refused(two_folders, data_folder):
    plain = serve(data_folder)[0].identity
    assert plain["data.fingerprint"] == open_dataset(data_folder).manifest.fingerprint
    names = [
        serve_mixture(two_folders)[0].identity,
        serve_mixture([*two_folders[:1], (*two_folders[1][:2], 2)])[0].identity,
    ]
    assert names[0]["data.sources"] == "made 0.75, other 0.25"
    assert names[0]["data.sources"] != names[1]["data.sources"]
    assert serve_mixture(two_folders, packing=BestFit())[0].identity["packing"] != names[0]["packing"]


def test_each_source_of_a_mixture_is_held_out_on_its_own(two_folders):
    datamodule, _ = serve_mixture(two_folders)
    first = [inputs for inputs, _ in datamodule.held_out_batches("validation")]
    assert torch.equal(
        torch.cat(first), torch.cat([i for i, _ in datamodule.held_out_batches("validation", source="made")])
    )
    other = torch.cat([inputs for inputs, _ in datamodule.held_out_batches("validation", source="other")])
    assert is_other(other[:-4]).all()  # the last ones are padding


def test_held_out_windows_count_documents_where_training_keeps_them_apart(two_folders):
    datamodule, plan = serve(two_folders[1][1])
    masked = TokenDataModule(folder=two_folders[1][1], batch=plan, seed=SEED, packing=Contiguous(document_mask=True))
    masked.trainer = datamodule.trainer
    assert all(len(batch) == 2 for batch in datamodule.held_out_batches("validation"))
    for inputs, targets, documents in masked.held_out_batches("validation"):
        ended = (inputs == 256)[:, 1:].cumsum(1)  # an end-of-text begins the next document
        known = targets[:, 1:] != -100
        assert torch.equal(documents[:, 1:][known], ended[known].int())
        assert (documents[:, 0] == 0).all()
