"""Write many texts at once: a forward pass reads the next token of each, and a piece of the waiting prompts.

Continuous batching (Orca, OSDI 2022) with prompts in pieces (Sarathi, arXiv 2308.16369). A text takes over the cached
tokens that it shares with an earlier one. Used by `lmtrain generate`, `chat`, `serve` and by rollouts.
N tokens of several texts one after the other, L texts read to their end, V vocabulary.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from lmtrain.errors import ConfigurationError
from lmtrain.inference.cache import KVCache, Piece, Step
from lmtrain.inference.generation import Delta, Generation, Request, TokenScore
from lmtrain.inference.sampling import choose, likeliest
from lmtrain.models.base import LanguageModel
from lmtrain.precision.cpu_products import cpu_matmul_precision, multiplying

FEWEST_SHARED: Final = 16  # tokens: a shorter common beginning is read again
FEWEST_MULTIPLIED: Final = 64  # tokens of a pass from which on oneDNN's products are faster


@final
@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """How much is kept and done at once.

    The cache has room for `num_texts` of the model's whole context; memory is taken with use. `prefill_tokens` are
    those of prompts in one forward pass: more read prompts faster, fewer let others write on, as a server wants.
    """

    num_texts: int = 16
    prefill_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.num_texts < 1:
            raise ConfigurationError(f"num_texts: must be at least 1, got {self.num_texts}.")


@final
class TextEngine:
    """A model built with `CachedAttention`, its cache, and the texts being written; for one thread."""

    def __init__(self, model: LanguageModel, pieces: Sequence[bytes], *, limits: EngineLimits | None = None) -> None:
        """Take a model with its weights, and the bytes of every token."""
        self.model, self.limits = model.eval(), limits or EngineLimits()
        self._pieces, context = pieces, model.max_context_tokens
        self._device = next(model.parameters()).device
        num_texts = self.limits.num_texts
        self._cache = KVCache(num_slots=num_texts, num_tokens=context, device=self._device)
        self._texts: list[Generation | None] = [None] * num_texts  # the last text of each slot
        self._free = list(range(num_texts))  # slots without a text being written, longest ago first
        self.waiting = deque[Generation]()
        self.running: list[Generation] = []

    @property
    def is_idle(self) -> bool:
        """Return whether no text waits for a token."""
        return not self.running and not self.waiting

    def prepare(self, request: Request) -> Generation:
        """Return a request's text, not yet waiting; safe in any thread.

        Raises:
            ConfigurationError: The prompt is longer than the model's context, or has an id outside the vocabulary.
        """
        context, num_tokens = self.model.max_context_tokens, len(request.prompt)
        if num_tokens > context and not request.slides:
            raise ConfigurationError(f"prompt: must have at most {context} tokens, the context; got {num_tokens}.")
        named = (*request.prompt, *request.sampling.logit_bias)
        if bad := [token for token in named if not 0 <= token < self.model.vocab_size]:
            raise ConfigurationError(f"token id {bad[0]}: must be from 0 to {self.model.vocab_size - 1}.")
        generation = Generation(request, pieces=self._pieces)
        generation.begins_at = max(0, num_tokens - context)
        return generation

    def submit(self, request: Request) -> Generation:
        """Let a request wait for its turn; raises as `prepare` does."""
        generation = self.prepare(request)
        self.waiting.append(generation)
        return generation

    def cancel(self, generation: Generation) -> None:
        """End a text now; an ended one stays as it is."""
        if generation.finish_reason is not None:
            return
        generation.finish_reason = "cancelled"
        if generation in self.running:
            self._end(generation)
        else:
            self.waiting.remove(generation)

    def run(self, requests: Sequence[Request]) -> Iterator[Delta]:
        """Write the texts of requests and yield each new piece as it comes."""
        for request in requests:
            self.submit(request)
        while not self.is_idle:
            yield from self.step()

    def write(self, requests: Sequence[Request]) -> list[Generation]:
        """Write the texts of requests together and return them in their order."""
        generations = [self.submit(request) for request in requests]
        while not self.is_idle:
            self.step()
        return generations

    def step(self) -> list[Delta]:
        """Do one forward pass and return the new pieces of texts."""
        with torch.inference_mode():
            self._admit()
            turns = self._turns()
            return [delta for each in self._scored(turns) if (delta := self._add(*each))] if turns else []

    def _admit(self) -> None:
        """Start waiting texts in their order; one whose beginning is just being read by another waits for it."""
        being_read = {_beginning(other) for other in self.running if other.num_pending > 1} if self.waiting else set()
        for generation in list(self.waiting):
            if not self._free:
                return
            beginning = _beginning(generation)
            if beginning is not None and beginning in being_read:
                continue
            self.waiting.remove(generation)
            self._place(generation)
            self.running.append(generation)
            if generation.num_pending > 1:
                being_read.add(beginning)

    def _place(self, generation: Generation) -> None:
        """Give a text a slot with the tokens it shares with the text of any slot, but for its last one."""
        wanted = generation.tokens[generation.begins_at : -1]
        shared = [0 if other is None else num_common([wanted, other.cached_tokens]) for other in self._texts]
        source = max(range(len(shared)), key=shared.__getitem__)
        can_share = self.model.shares_beginnings and not generation.request.scores_prompt
        num_shared = shared[source] if can_share and shared[source] >= FEWEST_SHARED else 0
        before = self._texts[source]
        goes_on = source in self._free and before is not None and num_shared == before.num_cached > 0
        slot = source if goes_on else self._free[0]
        self._free.remove(slot)
        if num_shared and slot != source:
            self._cache.copy(source, slot, num_shared)
        self._texts[slot], generation.slot = generation, slot
        generation.num_cached = generation.num_shared = num_shared

    def _turns(self) -> list[tuple[Generation, int]]:
        """Return who reads how many tokens now: a token of each writer, and pieces of prompts within the limit."""
        turns: list[tuple[Generation, int]] = []
        left = self.limits.prefill_tokens
        for generation in self.running:
            num_tokens = generation.num_pending
            if num_tokens > 1:
                num_tokens = min(num_tokens, left)
                left -= num_tokens
            if num_tokens:
                turns.append((generation, num_tokens))
        return sorted(turns, key=lambda turn: (turn[1] > 1, turn[0].slot))

    def _scored(self, turns: Sequence[tuple[Generation, int]]) -> Iterator[tuple[Generation, int, Tensor]]:
        """Read the pieces; yield texts with the place of a token and its logits [V]: of the next, and of asked ones."""
        pieces, tokens, rows = list[Piece](), list[int](), list[tuple[Generation, int, int]]()
        for generation, num_tokens in turns:
            start = generation.begins_at + generation.num_cached
            pieces.append(Piece(generation.slot, generation.num_cached, num_tokens))
            end = start + num_tokens
            first = start if generation.request.scores_prompt else max(start, len(generation.tokens) - 1)
            rows += [(generation, place + 1, len(tokens) + place - start) for place in range(first, end)]
            tokens += generation.tokens[start:end]
            generation.num_cached += num_tokens
        many = len(tokens) >= FEWEST_MULTIPLIED and self._device.type == "cpu"
        with multiplying(cpu_matmul_precision()) if many else nullcontext():
            hidden = self.model.hidden_states(
                torch.tensor([tokens], device=self._device), Step(self._cache, pieces)
            )  # [1, N, D]
            asked = [row for _, _, row in rows]
            logits = self.model.logits(hidden if len(asked) == len(tokens) else hidden[:, asked])[0]
        for (generation, place, _), scores in zip(rows, logits, strict=True):
            yield generation, place, scores

    def _add(self, generation: Generation, place: int, logits: Float[Tensor, " V"]) -> Delta | None:
        """Choose a text's next token; score one of its prompt instead."""
        request, num = generation.request, generation.request.num_likeliest
        if place < len(generation.tokens):
            token = generation.tokens[place]
            generation.scores.append(TokenScore(token, *likeliest(logits, token, num=num or 0)))
            return None
        new = generation.new_tokens
        allowed, draw = generation.allowed(logits), generation.draw()
        token = choose(allowed, request.sampling, prompt=request.prompt, new=new, draw=draw)
        score = None if num is None else TokenScore(token, *likeliest(logits, token, num=num))
        context = self.model.max_context_tokens
        delta = generation.add(token, score, most_tokens=None if request.slides else context)
        if delta.finish_reason is not None:
            self._end(generation)
        elif (num_tokens := len(generation.tokens)) - generation.begins_at > context:
            # The text begins one token later: every position changes, and with it the whole cache.
            generation.begins_at, generation.num_cached = num_tokens - context, 0
        elif generation.num_cached == self.model.reread_beyond:
            generation.num_cached = 0
        return delta

    def _end(self, generation: Generation) -> None:
        self.running.remove(generation)
        self._free.append(generation.slot)


def _beginning(generation: Generation) -> tuple[int, ...] | None:
    """Return the first tokens of a text, which another may share; None where it has no more."""
    tokens = generation.tokens[generation.begins_at : generation.begins_at + FEWEST_SHARED + 1]
    return tuple(tokens[:-1]) if len(tokens) > FEWEST_SHARED else None


def num_common(texts: Sequence[list[int]]) -> int:
    """Return how many tokens all texts have in common from their beginning."""
    return len(os.path.commonprefix(texts))  # noqa: RUF071  (of lists)
