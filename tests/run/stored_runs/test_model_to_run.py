"""What a folder of transformers writes here is what transformers writes with it."""

import math
import struct
from os import SEEK_END
from shutil import copytree, ignore_patterns

import pytest
import torch

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.run.stored_runs.model_to_run import model_to_run
from lmtrain.storage.hashed_folder import MANIFEST, write_atomically
from tests.interop.hugging_face import imported, saved

PROMPTS = ["The cat", "A much longer prompt than the other one"]


def greedy(loaded, num_new_tokens):
    engine = loaded.engine(EngineLimits(block_tokens=4, prefill_tokens=16))
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
    with pytest.raises(ConfigurationError, match="--device tpu9 is not on this machine; nearest valid: cpu"):
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
