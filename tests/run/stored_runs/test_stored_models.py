"""Models of runs and folders: generation equal to transformers, held-out scores and exports."""

import json
import math
import struct
from os import SEEK_END
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.models.gpt2 import GPT2
from lmtrain.run.stored_runs.exported_models import model_to_export
from lmtrain.run.stored_runs.find_run import find_job
from lmtrain.run.stored_runs.loaded_models import has_conversed, model_to_run, score_split, score_texts
from lmtrain.storage.hashed_folder import MANIFEST, write_atomically
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.interop.hugging_face import imported, saved

PROMPTS = ["The cat", "A much longer prompt than the other one"]


def greedy(loaded, num_new_tokens):
    engine = loaded.engine(EngineLimits(prefill_tokens=16))
    sampling = Sampling(temperature=0.0)
    asked = [
        engine.submit(Request(prompt=loaded.encode(prompt), num_new_tokens=num_new_tokens, sampling=sampling))
        for prompt in PROMPTS
    ]
    while not engine.is_idle:
        engine.step()
    return [each.new_tokens for each in asked]


@pytest.mark.parametrize("name", ["gpt2", "llama 3 rope", "qwen3 windows", "mistral", "mixtral"])
def test_greedy_texts_are_those_of_transformers(name, tmp_path):
    theirs = saved(name, tmp_path / "hf")
    expected = [
        theirs.generate(torch.tensor([list(prompt.encode())]), max_new_tokens=20, do_sample=False, eos_token_id=None)[
            0, len(prompt) :
        ].tolist()
        for prompt in PROMPTS
    ]
    assert greedy(model_to_run(tmp_path / "hf", device="cpu"), 20) == expected
    if name == "gpt2":
        imported(tmp_path / "hf", tmp_path / "imported")
        assert greedy(model_to_run(tmp_path / "imported", device="cpu"), 20) == expected


def test_what_cannot_be_is_refused(tmp_path):
    saved("llama", tmp_path / "hf")
    with pytest.raises(ConfigurationError, match="--weights ema"):
        model_to_run(tmp_path / "hf", weights="ema")
    with pytest.raises(ConfigurationError, match=r"--device: must be cpu.*got tpu9"):
        model_to_run(tmp_path / "hf", device="tpu9")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    saved("llama", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "imported")

    def spoil(folder):
        copytree(tmp_path / "imported", folder, dirs_exist_ok=True, ignore=ignore_patterns(MANIFEST))
        with (folder / "weights/model.safetensors").open("r+b") as file:
            file.seek(-4, SEEK_END)
            file.write(struct.pack("<f", math.nan))

    write_atomically(tmp_path / "spoilt", facts={}, write=spoil)
    with pytest.raises(DataError, match=r"weight in .*spoilt has 0 infinities and 1 NaN"):
        model_to_run(tmp_path / "spoilt", device="cpu")


def loaded(*, vocab_size=257, num_tokens=64, init_std=0.0) -> LoadedModel:
    model = GPT2(
        width=16, num_layers=1, num_heads=2, vocab_size=vocab_size, max_context_tokens=num_tokens, init_std=init_std
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    return LoadedModel(name="even", model=model, tokenizer=ByteLevelTokenizer())


@pytest.mark.parametrize("vocab_size", [257, 320])  # the second has ids beyond the tokenizer's
@pytest.mark.parametrize(("text", "context_tokens"), [("a", None), ("é" * 70, None), ("some words " * 9, 5)])
def test_a_model_without_an_opinion_needs_the_bits_of_its_vocabulary(vocab_size, text, context_tokens):
    found = score_texts(loaded(vocab_size=vocab_size), [text], context_tokens=context_tokens, batch_tokens=100)
    assert found.num_bytes == len(text.encode())
    bits = torch.tensor(float(vocab_size)).log2().item()
    assert found.bits_per_byte == pytest.approx(bits, abs=1e-6)


def test_conversations_of_a_folder_outside_any_run_are_scored_whole_as_if_alone(tmp_path):
    found, end, length = loaded(init_std=0.2), 256, 10
    conversations = torch.randint(256, (5, length), generator=torch.Generator().manual_seed(1))
    conversations[:, -1] = end
    learned = torch.arange(length).expand(5, -1) >= 4
    writer = ShardWriter(tmp_path, split="validation", dtype="uint16", shard_tokens=1000)
    ends = np.arange(length, 5 * length + 1, length)
    writer.append(conversations.flatten().numpy(), ends, learned.flatten().numpy().astype(np.uint8))
    splits = {"validation": writer.close(text_bytes=5 * length)}
    fingerprint = found.tokenizer.fingerprint
    write_manifest(
        tmp_path,
        Manifest(name="made", dtype="uint16", vocab_size=257, tokenizer_fingerprint=fingerprint, splits=splits),
    )
    score = score_split(found, open_dataset(tmp_path), split="validation", context_tokens=16, batch_tokens=64)
    inputs = F.pad(conversations, (1, 0), value=end)[:, :-1]
    nats = F.cross_entropy(found.model(inputs).transpose(1, 2), conversations, reduction="none")
    assert score.nats == pytest.approx(nats[learned].sum().item(), rel=1e-5)


def test_an_import_is_a_model_whose_data_nobody_knows(tmp_path: Path) -> None:
    saved("mixtral", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "in")
    model = model_to_export(tmp_path / "in")
    assert (model.facts.imported_from, model.facts.data_name, model.facts.tokens) == ("hf", None, None)
    assert model.facts.num_active_parameters < model.facts.num_parameters
    assert model.tokenizer is not None
    assert model.companions == tmp_path / "in" / "original"


def made(folder: Path, *, mask: str | None = None, **config: Any) -> Path:
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    job = {"config": {"data": {"folder": {}}, **config}, "overrides": [], "name": folder.name, "root": "runs"}
    (attempt / "job.json").write_text(json.dumps(job))
    (folder / "dataset.json").write_text(json.dumps({"splits": {"train": {"shards": [{"mask_sha256": mask}]}}}))
    return folder


def conversed(run: Path) -> bool:
    return has_conversed(run, find_job(run, key="RUN"))


def test_a_run_on_text_has_not_conversed_unless_one_before_it_has(tmp_path: Path) -> None:
    base, talker = made(tmp_path / "base"), made(tmp_path / "talker", mask="ab")
    assert not conversed(base)
    assert conversed(talker)
    assert not conversed(made(tmp_path / "later", init_from=str(base), resume="auto"))
    checkpoint = talker / "checkpoints" / "step_00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text("{}")
    assert conversed(made(tmp_path / "tuned", init_from=str(talker)))
    assert conversed(made(tmp_path / "fork", resume=str(talker)))
