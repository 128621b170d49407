"""Sizes of a batch in tokens: other programs count sequences, of a step, of a pass of a device or of all its passes."""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from lmtrain.accounting.quantities import parse_whole
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.foreign.table import Equivalent, settings_elsewhere
from lmtrain.run.compose.paths import conf_folder

CONTEXT: Final = "batch.context_tokens"
TOKENS: Final = "batch.tokens_per_step"
MICRO: Final = "batch.micro_batch_sequences"
DEVICES: Final = "trainer.devices"
NODES: Final = "trainer.num_nodes"
AUTO: Final = Equivalent((f"{MICRO}=auto",), "the largest that fits the device's memory")


@dataclass(frozen=True)
class TypedBatch:
    """The sizes among a command's values by name, None for one that is not typed; sizes of a pass in sequences."""

    typed: Mapping[str, str]

    def number(self, kind: str) -> int | None:
        """Return the number of a key of ours, or of a kind of settings elsewhere."""
        names = settings_elsewhere().names
        return _number(self.typed, (kind, *names.get(f"{kind}={{}}", ()), *names.get(kind, ())))

    @cached_property
    def context(self) -> int:
        """Return the tokens of a sequence."""
        return self.number(CONTEXT) or shared_number(CONTEXT)

    @cached_property
    def devices(self) -> int:
        """Count the devices of all nodes."""
        if of_all := self.number("devices_of_all_nodes"):
            return of_all
        of_a_node = self.number(DEVICES) or self.number("devices_of_some") or _number(self.typed, ("devices",)) or 1
        return of_a_node * (self.number(NODES) or 1)

    @cached_property
    def of_a_pass(self) -> int | None:
        """Return the sequences of one pass of one device; beside passes nanoGPT's batch_size is that."""
        in_tokens = self.number("of_a_pass_in_tokens")
        named = self.number("of_a_device") or self.number("of_a_pass")
        if in_tokens and not named:
            return max(1, in_tokens // self.context)
        return named or (_number(self.typed, ("batch_size",)) if self.number("passes") else None)

    @cached_property
    def tokens(self) -> int | None:
        """Return the tokens of a step, where the sizes typed decide them."""
        if in_tokens := self.number("of_a_step_in_tokens"):
            return in_tokens
        of_a_step = self.number("of_a_step")
        is_of_a_pass = self.number("passes") and "batch_size" in self.typed
        if of_a_step and not is_of_a_pass:
            return of_a_step * self.context
        if self.of_a_pass and (self.number("passes") or self.number("of_a_device")):
            return self.of_a_pass * (self.number("passes") or 1) * self.devices * self.context
        return None


def batch_equivalent(kind: str, name: str, typed: Mapping[str, str]) -> Equivalent:
    """Return a batch's size in tokens for one of its sizes elsewhere."""
    value = typed[name]
    if not _number(typed, (name,)):
        return AUTO if value.lower() in ("auto", "true") else Equivalent((), f"{value} is no number of sequences")
    batch = TypedBatch(typed)
    micro = [f"{MICRO}={batch.of_a_pass}"] if batch.of_a_pass else []
    if kind.endswith("in_tokens"):
        words = [f"{TOKENS}={batch.tokens}"] if batch.number("of_a_step_in_tokens") else []
        return Equivalent((*words, *micro), f"{name} counts tokens")
    if batch.number("of_a_step_in_tokens") and kind != "passes":
        return Equivalent((f"{TOKENS}={batch.tokens}", *micro))
    if kind == "of_a_step" and not (batch.of_a_pass and batch.tokens and batch.number("passes")):
        return Equivalent((f"{TOKENS}={batch.tokens}",), f"{value} sequences of {CONTEXT}={batch.context}")
    if batch.of_a_pass and batch.tokens and (batch.number("passes") or kind == "of_a_device"):
        return Equivalent((f"{TOKENS}={batch.tokens}", *micro), _product(batch))
    if kind == "passes":
        return _of_passes(batch, int(value))
    return Equivalent(tuple(micro), "of one pass of one device")


def _product(batch: TypedBatch) -> str:
    """Return the factors of a step's tokens, those of 1 left out."""
    passes = batch.number("passes")
    whole = batch.tokens or 0
    if whole != (batch.of_a_pass or 1) * (passes or 1) * batch.devices * batch.context:
        return ""
    one = "sequence" if batch.of_a_pass == 1 else "sequences"
    parts = [f"{batch.of_a_pass} {one}", *([f"{passes} passes"] if passes else [])]
    parts += [*([f"{batch.devices} devices"] if batch.devices > 1 else []), f"{batch.context} tokens"]
    return " x ".join(parts)


def _of_passes(batch: TypedBatch, passes: int) -> Equivalent:
    """Return the size of one pass for so many passes of a step, of a step rounded up where they do not divide it."""
    typed = batch.tokens or batch.number(TOKENS)
    whole = (typed or shared_number(TOKENS)) // batch.context
    of_a_pass = max(1, math.ceil(whole / (batch.devices * passes)))
    rounded = of_a_pass * batch.devices * passes
    size = [f"{TOKENS}={rounded * batch.context}"] if batch.tokens or rounded != whole else []
    of_old = "" if size else "; the step's batch stays as it is"
    return Equivalent((*size, f"{MICRO}={of_a_pass}"), f"{passes} passes make a step's {rounded} sequences{of_old}")


def _number(typed: Mapping[str, str], names: Iterable[str]) -> int | None:
    for name in names:
        with contextlib.suppress(ConfigurationError):
            return parse_whole(typed.get(name, ""), name)
    return None


def shared_number(key: str) -> int:
    """Return a number of the entry config by the last word of its key."""
    entry = (conf_folder() / "train.yaml").read_text()
    found = re.search(rf"^  {key.rpartition('.')[2]}: (\d+)", entry, flags=re.MULTILINE)
    assert found is not None
    return int(found.group(1))
