"""Models of every family, small and with weights that matter, and what the uncached path writes with them."""

import torch

from lmtrain.inference import engine as engine_module
from lmtrain.inference.cache import cached_sdpa
from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.sampling import Sampling, choose, generate
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.nano import nano
from lmtrain.models.rope import RopeScaling

VOCABULARY, CONTEXT = 61, 48
SIZES = {"width": 32, "num_layers": 3, "num_heads": 4, "vocab_size": VOCABULARY, "max_context_tokens": CONTEXT}
LLAMA = {**SIZES, "feed_forward_width": 48, "num_kv_heads": 2, "attention": cached_sdpa}
SCALING = RopeScaling(factor=4.0, original_context_tokens=16)
EXPERTS = Experts(num_experts=4, num_experts_per_token=2)
SMEARS = {"embedding_smear": True, "key_smear": True, "num_bigram_buckets": 32, "embedding_skip": True}
FAMILIES = {
    "gpt2": lambda: GPT2(**SIZES, attention=cached_sdpa),
    "llama": lambda: Llama(**LLAMA, rope_scaling=SCALING),
    "qwen3": lambda: Llama(**LLAMA, qk_norm=True, tie_embeddings=True, head_width=16),
    "mistral": lambda: Llama(**LLAMA, window_tokens=7),
    "mixture": lambda: Llama(**LLAMA, experts=EXPERTS),
    "llama_tiny": lambda: Llama(**LLAMA, **SMEARS, value_embedding_layers=(1, 2), activation="relu_squared"),
    "nano": lambda: nano(depth=4, vocab_size=VOCABULARY, max_context_tokens=CONTEXT, attention=cached_sdpa),
}


def build(family):
    """Return a model of a family."""
    return noisy(FAMILIES[family]())


def noisy(model):
    """Return a model all of whose parts have a say: every weight gets noise, also those that start at zero."""
    generator = torch.Generator().manual_seed(0)
    model.initialize_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def prompts(*lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def greedy(prompt, num_new_tokens, **settings):
    return Request(prompt=prompt, num_new_tokens=num_new_tokens, sampling=Sampling(temperature=0.0), **settings)


def engine(model, **limits):
    return TextEngine(model, [bytes([65 + i]) for i in range(VOCABULARY)], limits=EngineLimits(**limits))


def write(an_engine, requests):
    """Return what an engine writes for each request, in their order."""
    generations = [an_engine.submit(request) for request in requests]
    while not an_engine.is_idle:
        an_engine.step()
    return generations


def let_say(monkeypatch, *tokens):
    """Let a model say given tokens, then its likeliest ones."""
    script = iter(tokens)

    def next_token(logits, sampling, **of):
        return next(script, None) or choose(logits, sampling, **of)

    monkeypatch.setattr(engine_module, "choose", next_token)


def uncached(model, prompt, num_new_tokens):
    """Return the greedy tokens that follow a prompt, with the whole window read for each."""
    whole = generate(model, torch.tensor([prompt]), num_new_tokens=num_new_tokens, sampling=Sampling(temperature=0.0))
    return whole[0, len(prompt) :].tolist()
