"""What a folder of transformers writes here is what transformers writes with it."""

import pytest
import torch

from lmtrain.composition.stored_runs.model_to_run import model_to_run
from lmtrain.errors import ConfigurationError
from lmtrain.inference.engine import EngineLimits
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling_settings import Sampling
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
