"""Write many texts at once: a forward pass reads the next token of each, and a piece of the waiting prompts.

Continuous batching (Orca, OSDI 2022) with prompts in pieces (Sarathi, arXiv 2308.16369). Shared by `lmtrain generate`,
`chat` and `serve`. N tokens of several texts one after the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lmtrain.accounting.training_plan.stages import TEXTS_AT_ONCE
from lmtrain.errors import ConfigurationError
from lmtrain.inference.blocks import BlockPool
from lmtrain.inference.cache_step import Piece, Step
from lmtrain.inference.fair_queue import FairQueue
from lmtrain.inference.generation import Delta, Generation, Request, TokenScore
from lmtrain.inference.joint_texts import keep_places
from lmtrain.inference.kv_cache import KVCache
from lmtrain.inference.recorded_pass import RecordedPasses
from lmtrain.inference.sampling import choose, likeliest, likeliest_tokens
from lmtrain.models.base import LanguageModel


@final
@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """How much is kept and done at once.

    `cache_tokens` None has room for `num_texts` of the model's whole context; memory is taken with use.
    `prefill_tokens` are those of prompts in one forward pass: more read prompts faster, fewer let others write on, as
    a server wants.
    """

    num_texts: int = TEXTS_AT_ONCE
    cache_tokens: int | None = None
    block_tokens: int = 16
    prefill_tokens: int = 2048

    def __post_init__(self) -> None:
        for name in ("num_texts", "cache_tokens", "block_tokens", "prefill_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}={value} is below 1; nearest valid: 1.")


@final
class TextEngine:
    """A model, built with `paged` attention, its cache, and the texts in writing; of one thread."""

    def __init__(
        self,
        model: LanguageModel,
        pieces: Sequence[bytes],
        *,
        limits: EngineLimits | None = None,
        compiles: bool = False,
    ) -> None:
        """Take a model with its weights, and the bytes of every token; a lone text's passes may be compiled."""
        self.model, self.limits = model.eval(), limits or EngineLimits()
        self._pieces = pieces
        device = next(model.parameters()).device
        size = self.limits.block_tokens
        wanted = self.limits.cache_tokens or self.limits.num_texts * model.max_context_tokens
        self.pool = BlockPool(max(-(-wanted // size), -(-model.max_context_tokens // size)), block_tokens=size)
        self.cache = KVCache(block_tokens=size, device=device)
        self.read = RecordedPasses(self.model, compiles=compiles)
        self._window_tokens = _longest_window(model)
        self.waiting = FairQueue()
        self.running: list[Generation] = []
        self._writers: list[Generation] = []  # of the last pass, in the places of their copies

    @property
    def is_idle(self) -> bool:
        """Tell whether nobody waits for a token."""
        return not self.running and not len(self.waiting)

    def prepare(self, request: Request) -> Generation:
        """Return a request's text, not yet waiting; safe in any thread.

        Raises:
            ConfigurationError: Its prompt is beyond the model's context, or has a token without a row in the model.
        """
        context, num_tokens = self.model.max_context_tokens, len(request.prompt)
        if num_tokens > context and not request.slides:
            raise ConfigurationError(
                f"prompt has {num_tokens} tokens, over the model's context of {context}; nearest valid: {context}."
            )
        named = (*request.prompt, *request.sampling.logit_bias)
        if bad := [token for token in named if not 0 <= token < self.model.vocab_size]:
            raise ConfigurationError(
                f"token {bad[0]} is none of the model's {self.model.vocab_size}: 0 to vocab_size - 1."
            )
        generation = Generation(request, pieces=self._pieces)
        generation.begins_at = max(0, num_tokens - context)
        return generation

    def submit(self, request: Request) -> Generation:
        """Let a request wait for its turn; raises as `prepare` does."""
        generation = self.prepare(request)
        self.waiting.add(generation)
        return generation

    def cancel(self, generation: Generation) -> None:
        """End a text now and free its memory; an ended one stays as it is."""
        if generation.finish_reason is not None:
            return
        generation.finish_reason = "cancelled"
        if generation in self.running:
            self._end(generation)
        else:
            self.waiting.take(generation)

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
        self._admit()
        turns = self._turns()
        if not turns:
            return []
        with torch.inference_mode():
            logits = self._logits(turns)
            rows, largest = logits.unbind(), likeliest_tokens(logits)
        complete = [generation for generation, _ in turns if generation.num_pending == 0]
        return [self._add(*each) for each in zip(complete, rows, largest, strict=True)]

    def _admit(self) -> None:
        """Start texts in the order of turns, while the blocks for their possible length are there."""
        if len(self.running) >= self.limits.num_texts or not len(self.waiting):
            return
        num_reserved = sum(map(self._most_blocks, self.running))
        begun = {self._first_block(other) for other in self.running if other.num_pending > 1}
        for generation in list(self.waiting):
            num_reserved += self._most_blocks(generation)
            if len(self.running) >= self.limits.num_texts or num_reserved > self.pool.num_blocks:
                return
            first = self._first_block(generation)
            if first is not None and first in begun:  # its prefix is about to be read
                num_reserved -= self._most_blocks(generation)
                continue
            self.waiting.take(generation)
            generation.table = self.pool.open(generation.tokens[generation.begins_at :])
            generation.num_cached = len(generation.table.blocks) * self.limits.block_tokens
            generation.num_prefix_tokens = generation.num_cached
            self._give_back_unseen(generation)
            self.running.append(generation)
            if generation.num_pending > 1:
                begun.add(first)

    def _most_blocks(self, generation: Generation) -> int:
        """Return how many blocks a text may have at one time: all of its own, or those of a window and a piece."""
        request, size = generation.request, self.limits.block_tokens
        num_tokens = min(self.model.max_context_tokens, len(request.prompt) + request.num_new_tokens)
        if self._window_tokens is not None:
            num_seen = self._window_tokens + self.limits.prefill_tokens
            num_tokens = min(num_tokens, num_seen + size)  # neither end need be a block's
        return -(-num_tokens // size)

    def _give_back_unseen(self, generation: Generation) -> None:
        """Give back the blocks wholly behind the window of the next token, and before the last one."""
        if self._window_tokens is not None:
            first = generation.num_cached - max(self._window_tokens - 1, 1)
            self.pool.give_back(generation.table, max(0, first) // self.limits.block_tokens)

    def _first_block(self, generation: Generation) -> tuple[int, ...] | None:
        """Return the tokens of a text's first block; None where the text is no longer than it."""
        size, begins = self.limits.block_tokens, generation.begins_at
        is_longer = len(generation.tokens) - begins > size
        return tuple(generation.tokens[begins : begins + size]) if is_longer else None

    def _turns(self) -> list[tuple[Generation, int]]:
        """Return who reads how many tokens now: first those who write, then pieces of prompts within the limit."""
        writing = [generation for generation in self.running if generation.num_pending == 1]
        self._writers = keep_places(self._writers, writing)
        reading: list[tuple[Generation, int]] = []
        left = self.limits.prefill_tokens
        for generation in self.running:
            if generation.num_pending > 1 and left > 0:
                reading.append((generation, min(generation.num_pending, left)))
                left -= reading[-1][1]
        # For the cache, a piece of one token is a writing text.
        return [(generation, 1) for generation in self._writers] + sorted(reading, key=lambda turn: turn[1] > 1)

    def _logits(self, turns: Sequence[tuple[Generation, int]]) -> Tensor:
        """Read the pieces [1, N]; return the logits after each text read to its end."""
        pieces: list[Piece] = []
        tokens: list[int] = []
        lasts: list[int] = []
        for generation, num_tokens in turns:
            start = generation.num_cached
            self.pool.extend(generation.table, start + num_tokens)
            pieces.append(Piece(generation.table.blocks, start, num_tokens))
            begins = generation.begins_at + start
            tokens += generation.tokens[begins : begins + num_tokens]
            generation.num_cached += num_tokens
            if generation.num_pending == 0:
                lasts.append(len(tokens) - 1)
        step = Step(self.cache, pieces, num_blocks=self.pool.num_touched)
        row = torch.tensor([tokens], device=self.cache.device)
        logits = self.read(row, step, lasts)
        for generation, _ in turns:
            if generation.num_cached // self.limits.block_tokens > generation.table.num_shared:
                self.pool.publish(generation.table, generation.cached_tokens)
            self._give_back_unseen(generation)
        return logits

    def _add(self, generation: Generation, logits: Tensor, largest: int) -> Delta:
        request = generation.request
        draw = generation.draw()
        new = generation.new_tokens
        token = choose(logits, request.sampling, prompt=request.prompt, new=new, draw=draw, largest=largest)
        score = None
        if request.num_likeliest is not None:
            score = TokenScore(token, *likeliest(logits, token, num=request.num_likeliest))
        context = self.model.max_context_tokens
        delta = generation.add(token, score, most_tokens=None if request.slides else context)
        if delta.finish_reason is not None:
            self._end(generation)
        elif len(generation.tokens) - generation.begins_at > context:
            self._slide(generation)
        return delta

    def _slide(self, generation: Generation) -> None:
        """Let a text begin one token later: every position changes, and with it the whole cache."""
        self.pool.close(generation.table)
        generation.begins_at = len(generation.tokens) - self.model.max_context_tokens
        generation.num_cached = 0

    def _end(self, generation: Generation) -> None:
        self.running.remove(generation)
        self.pool.close(generation.table)


def _longest_window(model: LanguageModel) -> int | None:
    """Return how many tokens the layers see at most; None where one sees the whole context."""
    windows = [layer.window_tokens for layer in model.shape().attention]
    return max((window for window in windows if window is not None), default=None) if None not in windows else None
