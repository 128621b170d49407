"""A model ready to write: its weights, its tokenizer, and its chat format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tokenizers import Tokenizer as FastTokenizer

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.inference.engine import EngineLimits, TextEngine
from lmtrain.inference.generation import Request
from lmtrain.inference.kept_interrupts import kept_interrupts
from lmtrain.interop.chat_template import end_ids
from lmtrain.interop.config_file import CONFIG
from lmtrain.interop.tokenizer_files import GENERATION_CONFIG, TOKENIZER_CONFIG
from lmtrain.models.base import LanguageModel
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import one_line, told_as_damage
from lmtrain.tokenizers.base import TOKENIZER_FILE, Tokenizer, is_unicode
from lmtrain.tokenizers.panics import HELD, panics_told

MAX_TEMPLATE_BYTES = 1 << 20


@final
@dataclass(frozen=True)
class ChatTemplate:
    """A chat template of transformers, and its optional tokens at the begin and the end."""

    text: str
    begin: str = ""
    end: str = ""


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
    """A model with `paged` attention, on its device; `template` None: it came without one.

    `end_ids` end a text; `begin_id` begins one, None: as in training here, the end-of-text id of the one before.
    `added_ids` are put before a text by its tokenizer in transformers. `origin` None: of a folder outside any run.
    `converses` False: it learned from no conversation, and its chat tokens are as at the start.
    `tokenizer_path` is its tokenizer's folder, None where it is in no file.
    `compiles`: its engines compile the pass of a lone text's next token before their first text.
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
    compiles: bool = False

    @property
    def first_id(self) -> int:
        """Return the id before a text's first."""
        return self.tokenizer.end_of_text_id if self.begin_id is None else self.begin_id

    def engine(self, limits: EngineLimits | None = None) -> TextEngine:
        """Return an engine of its own.

        Raises:
            ConfigurationError: The model's pass cannot be compiled.
            EnvironmentProblem: The compiler fails.
        """
        pieces = self.tokenizer.bytes_of_ids()
        if not self.compiles:
            return TextEngine(self.model, pieces, limits=limits)
        engine = TextEngine(self.model, pieces, limits=limits, compiles=True)
        _compile(engine)
        if not engine.read.is_compiled:
            raise ConfigurationError(
                f"--compile: a pass of {self.name} depends on the values of tensors, as that of experts; leave it out."
            )
        return engine

    def encode(self, prompt: str) -> list[int]:
        """Return a prompt's ids; an empty one begins a new document.

        Raises:
            DataError: It has bytes outside UTF-8.
        """
        if not is_unicode(prompt):
            raise DataError(f"prompt={prompt[:40]!r} has bytes outside UTF-8; correct them.")
        return self.tokenizer.encode(prompt) or [self.tokenizer.end_of_text_id]


def _compile(engine: TextEngine) -> None:
    """Compile before the first text: a pass reads a prompt, the second is recorded, the third compiled."""
    try:
        with kept_interrupts():
            for _ in engine.run([Request(prompt=[0], num_new_tokens=3)]):
                pass
    except (OSError, RuntimeError) as problem:  # torch's compiler has nothing narrower
        reason = one_line(problem, most=200)
        raise EnvironmentProblem(f"--compile: torch's compiler failed ({reason}); leave it out.") from problem


def read_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template in a folder of transformers: of its own file, else of the tokenizer's configuration.

    Raises:
        DataError: A file of the folder is damaged.
    """
    config = _json(folder / TOKENIZER_CONFIG)
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = (each for each in found if isinstance(each, dict) and each.get("name") == "default")
        found = next(named, {}).get("template")
    if (file := folder / "chat_template.jinja").is_file():
        with told_as_damage(file, fix="copy it again"):
            found = foreign_json.read_bytes(file, max_bytes=MAX_TEMPLATE_BYTES).decode()
    if not isinstance(found, str):
        return None
    return ChatTemplate(found, _token(config.get("bos_token")), _token(config.get("eos_token")))


def _token(named: Any) -> str:
    content = named.get("content") if isinstance(named, dict) else named
    return content if isinstance(content, str) else ""


def id_of_begin(tokenizer: Tokenizer, folder: Path) -> int | None:
    """Return the id in a folder's configuration for the beginning of a text, None without one."""
    return tokenizer.special_tokens.get(_token(_json(folder / TOKENIZER_CONFIG).get("bos_token")))


def ids_added(folder: Path) -> tuple[int, ...]:
    """Return the ids put before a text by a folder's `tokenizer.json`."""
    if not (folder / TOKENIZER_FILE).is_file():
        return ()
    path = folder / TOKENIZER_FILE
    try:
        with panics_told(str(path), held=HELD):
            return tuple(FastTokenizer.from_buffer(foreign_json.read_bytes(path)).encode("").ids)
    except DataError:
        raise
    except Exception as problem:  # the library raises nothing narrower
        raise DataError(f"{path} is damaged ({one_line(problem)}); copy it again.") from problem


def ids_of_ends(tokenizer: Tokenizer, folder: Path | None = None) -> frozenset[int]:
    """Return the ids at a text's end: of the tokenizer, and of a folder's generation config or else its config."""
    read = (_json(folder / name).get("eos_token_id") for name in (GENERATION_CONFIG, CONFIG)) if folder else ()
    more: Any = next((found for found in read if found is not None), None)
    ids: list[Any] = more if isinstance(more, list) else [more]
    return frozenset([*end_ids(tokenizer), *(id_ for id_ in ids if isinstance(id_, int))])


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = foreign_json.read(path)
    except ValueError as problem:
        raise DataError(f"{path} is damaged ({problem}); copy it again.") from problem
    return content if isinstance(content, dict) else {}
