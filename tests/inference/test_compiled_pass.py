"""A compiled pass writes what the model writes; the graph of each family is tried without the compiler's minute."""

from dataclasses import replace

import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.inference.cache_step import Piece, Step
from lmtrain.inference.compiled_pass import CompiledPass
from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.kv_cache import KVCache
from lmtrain.models.llama import Llama
from tests.inference.cached import (
    EXPERTS,
    FAMILIES,
    LLAMA,
    SMEARS,
    VOCABULARY,
    build,
    greedy,
    noisy,
    prompts,
    uncached,
    write,
)
from tests.serving.served import small_model

BLOCK = 4


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mixture"])
@pytest.mark.usefixtures("uncompiled")
def test_a_lone_text_is_that_of_the_uncached_path(family):
    model, (first, second) = build(family), prompts(19, 5)
    want = [uncached(model, first, 12), uncached(model, second, 20)]
    engine = TextEngine(
        model, [bytes([65 + i]) for i in range(VOCABULARY)], limits=EngineLimits(block_tokens=BLOCK), compiles=True
    )
    texts = write(engine, [greedy(first, 12), greedy(second, 20)])  # the second is alone in the end
    assert engine.read.is_compiled
    assert [text.new_tokens for text in texts] == want
    assert write(engine, [greedy(second, 20)])[0].new_tokens == want[1]  # from the first token on


def test_compiled_logits_are_those_of_the_model():
    model, (prompt,) = noisy(Llama(**{**LLAMA, **SMEARS, "num_layers": 1})), prompts(9)
    ours, theirs = (KVCache(block_tokens=BLOCK, device=torch.device("cpu")) for _ in range(2))

    def step(cache, start, num_tokens):
        return Step(cache, [Piece([0, 1, 2], start, num_tokens)], num_blocks=3)

    with torch.inference_mode():
        for cache in (ours, theirs):
            model.hidden_states(torch.tensor([prompt]), step(cache, 0, 9))
        compiled = CompiledPass(model)
        for place, token in enumerate((5, 60), start=9):
            read = torch.tensor([[token]])
            want = model.logits(model.hidden_states(read, step(theirs, place, 1)))
            torch.testing.assert_close(compiled(read, step(ours, place, 1)), want, atol=1e-5, rtol=1e-5)


def test_experts_are_refused():
    mixture = noisy(Llama(**{**LLAMA, "vocab_size": 300}, experts=EXPERTS))
    with pytest.raises(ConfigurationError, match="--compile: a pass of small depends on the values of tensors"):
        replace(small_model(), model=mixture, compiles=True).engine()


def test_a_compiler_that_fails_is_one_line(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("InvalidCxxCompiler:\nno working compiler")

    monkeypatch.setattr(torch, "compile", lambda graph, **_: fails)
    with pytest.raises(
        EnvironmentProblem, match=r"--compile: torch's compiler failed .InvalidCxxCompiler: no working comp"
    ):
        replace(small_model(), compiles=True).engine()
