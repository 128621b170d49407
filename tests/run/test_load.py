"""The Python door: the same texts and scores as the commands, for a run and for a folder of transformers."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

from lmtrain.api import load
from lmtrain.cli.commands.evaluate import evaluate
from lmtrain.cli.commands.generate import generate
from lmtrain.errors import ConfigurationError, DataError
from tests import tiny
from tests.interop.hugging_face import saved

TEXT = "A first sentence. And a second one, a little longer."


@pytest.fixture(scope="module", params=["run", "hugging face"])
def folder(request, tmp_path_factory):
    if request.param == "run":
        path = tmp_path_factory.mktemp("run")
        finished = tiny.train(path, "budget.steps=2", "run.name=a")
        assert finished.returncode == 0, finished.stderr
        return path / "runs/a"
    path = tmp_path_factory.mktemp("hf")
    saved("llama", path)
    return path


def test_texts_are_those_of_the_command(folder, capsys):
    model = load(folder, device="cpu")
    for words, settings in (
        ("--temperature 0", {"temperature": 0}),
        ("--seed 3 --top-k 0", {"seed": 3, "top_k": None}),
    ):
        words = [
            str(folder),
            "--device",
            "cpu",
            "--json",
            "--prompt",
            "The cat",
            "--num-new-tokens",
            "9",
            *words.split(),
        ]
        assert generate(words) == 0
        written = json.loads(capsys.readouterr().out)["text"]
        assert model.generate("The cat", num_new_tokens=9, **settings) == written
        assert model.generate(["The cat", "Another"], num_new_tokens=9, **settings)[0] == written


def test_scores_are_those_of_the_command(folder, tmp_path, capsys):
    (tmp_path / "words.txt").write_text(TEXT)
    assert evaluate([str(folder), "--device", "cpu", "--json", "--text", str(tmp_path / "words.txt")]) == 0
    expected = json.loads(capsys.readouterr().out)["scores"]["evaluation/words/bits_per_byte"]
    score = load(folder, device="cpu").score(TEXT)
    assert (score.bits_per_byte, score.nats_per_token) == (expected["score"], expected["nats_per_token"])


def test_text_and_score_are_those_of_transformers(tmp_path):
    theirs = saved("llama", tmp_path)
    model = load(tmp_path, device="cpu")
    ids = torch.tensor([model.tokenizer.encode("The cat")])
    expected = theirs.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)[0, ids.shape[1] :].tolist()
    if model.tokenizer.end_of_text_id in expected:
        expected = expected[: expected.index(model.tokenizer.end_of_text_id)]
    assert model.generate("The cat", num_new_tokens=12, temperature=0) == model.tokenizer.decode(expected)
    row = torch.tensor([[model.tokenizer.end_of_text_id, *model.tokenizer.encode(TEXT)]])
    with torch.no_grad():
        nats = F.cross_entropy(theirs(row[:, :-1]).logits[0], row[0, 1:], reduction="sum").item()
    score = model.score(TEXT)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / len(TEXT.encode()), rel=1e-5)
    assert sum(each.numel() for each in model.module.parameters()) == theirs.num_parameters()


def test_wrong_settings_are_refused(tmp_path):
    saved("llama", tmp_path)
    model = load(tmp_path, device="cpu")
    with pytest.raises(ConfigurationError, match="temperature"):
        model.generate("a", temperature=-1)
    with pytest.raises(ConfigurationError, match="65"):
        model.score(TEXT, context_tokens=65)
    with pytest.raises(DataError, match="at least 1 byte, got 0"):
        model.score("")
    with pytest.raises(ConfigurationError, match="nowhere"):
        load(tmp_path / "nowhere")
