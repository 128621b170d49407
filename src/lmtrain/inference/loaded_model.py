"""A model ready to write: its weights, its tokenizer, and the facts of its folder."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenizers import Tokenizer as FastTokenizer
from torch import nn

from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.grammar import Grammars
from lmtrain.interop.folders import CONFIG
from lmtrain.interop.tokenizer_files import GENERATION_CONFIG, end_ids
from lmtrain.models.base import LanguageModel
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import read_object
from lmtrain.tokenizers.base import TOKENIZER_FILE, ChatTemplate, Tokenizer, reject_failures, require_text
from lmtrain.tokenizers.templates import TOKENIZER_CONFIG, token_named


@final
@dataclass(frozen=True, kw_only=True)
class Origin:
    """The run and checkpoint of a model: optimizer steps, tokens, and the context of its training."""

    run: Path
    step: int
    tokens: int
    context_tokens: int


@final
@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model built with `CachedAttention`, on its device; `template` None: its folder has none.

    `end_ids` end a text; `begin_id` begins one, None: as in training here, the end-of-text id of the one before.
    `added_ids` are put before a text by its tokenizer in transformers. `origin` None: a folder outside any run.
    `converses` False: it was not trained on conversations, and its chat tokens are as at the start.
    `tokenizer_path` is its tokenizer's folder, None where it is in no file.
    """

    name: str
    model: LanguageModel
    tokenizer: Tokenizer
    tokenizer_path: Path | None = None
    template: ChatTemplate | None = None
    end_ids: frozenset[int] = frozenset()
    begin_id: int | None = None
    added_ids: tuple[int, ...] = ()
    origin: Origin | None = None
    converses: bool = True

    @property
    def first_id(self) -> int:
        """Return the id before a text's first."""
        return self.tokenizer.end_of_text_id if self.begin_id is None else self.begin_id

    def engine(self, limits: EngineLimits | None = None) -> TextEngine:
        """Return a new engine with an empty cache."""
        return TextEngine(self.model, self.tokenizer.bytes_of_ids(), limits=limits)

    @cached_property
    def grammars(self) -> Grammars:
        """The grammars that its texts may follow; raises EnvironmentProblem without llguidance."""
        return Grammars(self.tokenizer, [*self.end_ids])

    def encode(self, prompt: str) -> list[int]:
        """Return a prompt's ids; an empty one begins a new document."""
        require_text("prompt", prompt)
        return self.tokenizer.encode(prompt) or [self.tokenizer.end_of_text_id]


def lay_out_for_one_token(model: nn.Module) -> None:
    """Store every matrix of a model on a CPU column by column, its shape and values unchanged.

    A product of one token then adds up columns, in 0.6 to 0.8 of the time of row after row (torch 2.13 with MKL,
    [1, 128] x [128, 384] to [128, 4096], fp32, one thread); products of many tokens take the same time.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.device.type == "cpu":
            module.weight.data = module.weight.data.t().contiguous().t()


def id_of_begin(tokenizer: Tokenizer, folder: Path) -> int | None:
    """Return the id at the beginning of a text by a folder's configuration, None without one."""
    return tokenizer.special_tokens.get(token_named(read_object(folder / TOKENIZER_CONFIG).get("bos_token")))


def ids_added(folder: Path) -> tuple[int, ...]:
    """Return the ids put before a text by a folder's `tokenizer.json`."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        return ()
    with reject_failures(f"{path} is damaged", fix="copy it again"):
        return tuple(FastTokenizer.from_buffer(foreign_json.read_bytes(path)).encode("").ids)


def ids_of_ends(tokenizer: Tokenizer, folder: Path | None = None) -> frozenset[int]:
    """Return the ids at a text's end: of the tokenizer, and of a folder's generation config or else its config."""
    found = (read_object(folder / name).get("eos_token_id") for name in (GENERATION_CONFIG, CONFIG)) if folder else ()
    more: Any = next((ids for ids in found if ids is not None), None)
    ids: list[Any] = more if isinstance(more, list) else [more]
    return frozenset([*end_ids(tokenizer), *(id_ for id_ in ids if isinstance(id_, int))])
