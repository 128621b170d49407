"""`task=dpo` as a person types it: the reference, a resume, ranks, and refusals."""

import json

import numpy as np
import pytest
import torch

from tests import tiny

BASE = [*tiny.MODEL, *tiny.BATCH, *tiny.QUIET, "run.log_every_steps=1", "source=made_conversations"]
DATA = [
    "source.num_conversations=60",
    "data.folder.references=false",
    "tokenizer=byte_level",
    "tokenizer.vocab_size=512",
]
SPLITS = ["data.folder.validation_fraction=0.1", "data.folder.test_fraction=0.1"]
DPO = [
    *("init_from=runs/base", "task=dpo", "source.paths=[pairs.jsonl]", "batch.context_tokens=32", *tiny.QUIET),
    *("run.log_every_steps=1", "data.folder.references=false", "optimizer.lr=3e-3", "schedule=constant", *SPLITS),
]


def train(folder, *words, num_ranks=1, code=0):
    from tests import forked

    ended = forked.run(
        tiny.PROJECT / "train.py", words, folder=folder, environment=tiny.environment(), num_ranks=num_ranks
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def curve(folder, name, key):
    points = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    return {point["step"]: point["metrics"][key] for point in points if key in point["metrics"]}


@pytest.fixture(scope="module", name="folder")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dpo")
    lines = [{"prompt": f"say {n}", "chosen": f"{n} yes", "rejected": f"{n} no"} for n in range(60)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    train(folder, *BASE, *DATA, *SPLITS, "tokenizer.chat=true", "run.name=base", "budget.steps=2")
    said = train(folder, *DPO, "run.name=whole", "budget.steps=6")
    assert "reference: log-probabilities of " in said
    train(folder, *DPO, "run.name=parts", "budget.steps=3")
    said = train(folder, *DPO, "run.name=parts", "budget.steps=6")
    assert "going on from step 3" in said
    return folder


def test_preference_grows_from_the_loss_of_a_coin_and_a_resume_changes_nothing(folder) -> None:
    losses = curve(folder, "whole", "train/loss")
    assert losses[1] == pytest.approx(np.log(2), abs=1e-5)  # the model is its reference
    assert losses[6] < losses[1]
    assert curve(folder, "whole", "preference/margin")[6] > 0
    assert 0 <= curve(folder, "whole", "preference/accuracy")[6] <= 1
    for key in ("train/loss", "preference/chosen_reward", "train/gradient_norm"):
        assert curve(folder, "parts", key) == curve(folder, "whole", key)
    (kept,) = (folder / "runs" / "whole").glob("reference_*.npy")
    assert np.isfinite(np.load(kept)).any()


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_learn_the_same(folder, strategy: str) -> None:
    words = [*DPO, f"run.name={strategy}", "budget.steps=3", f"strategy={strategy}", "trainer.devices=2"]
    train(folder, *words, num_ranks=2)
    expected = {step: loss for step, loss in curve(folder, "whole", "train/loss").items() if step <= 3}
    assert curve(folder, strategy, "train/loss") == pytest.approx(expected, rel=1e-5)  # fp32, other orders of sums


def test_what_cannot_be_preferred_is_refused_in_one_line(folder) -> None:
    said = train(folder, *DPO[1:], "run.name=x", code=2)
    assert "task=dpo learns beside the model that it starts from" in said
    said = train(folder, *DPO, "packing=best_fit", "run.name=x", code=2)
    assert "packing puts several documents into a row, and task=dpo takes each answer as a row" in said
    said = train(folder, *DPO, "batch.micro_batch_sequences=1", "run.name=x", code=2)
    assert "batch.micro_batch_sequences=1 parts pairs of answers; nearest valid: 2." in said
    conversations = ["source=made_conversations", "source.num_conversations=60"]
    said = train(folder, *[word for word in DPO if "source" not in word], *conversations, "run.name=x", code=4)
    assert "are no pair, their prompts differ; task=dpo reads source=preference_pairs." in said
    assert torch.is_grad_enabled()
