"""From a source of text to a folder of verified shards, once.

    source -> clean -> deduplicate -> split -> train tokenizer -> encode -> compress held-out text -> verify

The folder is named after all facts that decide its content, so the same request gets the same folder back at once.
"""

from collections.abc import Mapping
from pathlib import Path

from data_pipelines.build import Build
from data_pipelines.build_request import BuildRequest, Settings
from data_pipelines.engines.engine import Engine
from data_pipelines.engines.local import LocalEngine
from data_pipelines.progress import tell
from data_pipelines.sources.base import Source
from data_pipelines.stages.render import WholeConversations
from data_pipelines.stages.split_rules import held_out_of
from data_pipelines.stages.stage import Stage
from data_pipelines.stages.train_tokenizer import TokenizerSpec
from lmtrain.data.atomic_folder import build_folder
from lmtrain.data.layout import DTYPES, DatasetFolder, narrowest_dtype, num_ids
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.tokenizers.chat_styles import style_names, styles_of


def prepare(
    *,
    source: Source,
    tokenizer: TokenizerSpec,
    cleaning: Mapping[str, Stage] | None = None,
    deduplicate: Mapping[str, Stage] | None = None,
    engine: Engine | None = None,
    root: str = "data",
    token_budget: int | None = None,
    allow_short: bool = False,
    sample_documents: int = 10_000,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
    split: str = "hash",
    references: bool = True,
    shard_tokens: int = 100_000_000,
    token_dtype: str | None = None,
    num_processes: int | None = None,
) -> DatasetFolder:
    """Return the folder of verified shards for these settings, found in `root` or built now.

    Documents go through the stages of `cleaning`, then of `deduplicate`, wherever `engine` runs them (None: here).
    `token_budget` is of tokens to train on, end-of-text included: reading stops with the document at the budget; None
    takes all. A shorter source is refused, unless `allow_short`. With a budget, a sample of `sample_documents`
    estimates its need beforehand; 0 asks for none. `split` holds out by a `hash` of the documents' names, or the `tail`
    of the text in reading order, the validation text before the test text; a source of its own validation documents
    leaves all others to training. `references` false leaves out what gzip and xz make of the held-out text: a folder
    that is there already stays as it is. `token_dtype` None is the narrowest for the vocabulary.
    `num_processes` encode: 0 does it beside the reading, None takes processes where there are cores.

    Raises:
        ConfigurationError: Fractions without a rest, a vocabulary too large for the type, a negative number, or
        conversations with a tokenizer unable to write them.
        DataError: No text, too little text, or a folder damaged after it was built.
        EnvironmentProblem: The root cannot be written. Finished work is kept, and the same call goes on from it.
    """
    question = BuildRequest(
        source=source,
        stages=(*(cleaning or {}).values(), _whole_conversations(source, tokenizer), *(deduplicate or {}).values()),
        spec=tokenizer,
        settings=Settings(
            held_out=held_out_of(source, split, fractions=(validation_fraction, test_fraction), budget=token_budget),
            shard_tokens=_positive("shard_tokens", shard_tokens),
            token_dtype=_fitting_dtype(token_dtype, tokenizer.vocab_size),
            token_budget=None if token_budget is None else _positive("token_budget", token_budget),
        ),
    )
    if source.has_conversations:
        _require_chat_tokens(tokenizer, source.name)
    build = Build(
        question,
        engine=engine or LocalEngine(),
        num_processes=None if num_processes is None else _not_negative("num_processes", num_processes),
        allow_short=allow_short,
        sample_documents=_not_negative("sample_documents", sample_documents),
        references=references,
    )
    folder = Path(root) / f"{source.name}-{question.fingerprint[:12]}"
    build_folder(folder, build, tell=tell, is_resumable=True)
    open_dataset(folder)  # refuses a damaged one
    return DatasetFolder(folder)


def _whole_conversations(source: Source, tokenizer: TokenizerSpec) -> WholeConversations:
    """Return the check of conversations, by the rules of the tokenizer's style too; of texts its tokens are unread."""
    styles = styles_of(tokenizer.special_tokens) if source.has_conversations else []
    return WholeConversations(style=styles[0].name) if styles else WholeConversations()


def _require_chat_tokens(tokenizer: TokenizerSpec, source: str) -> None:
    if not styles_of(tokenizer.special_tokens):
        way = (
            "set tokenizer.chat=true, or take the tokenizer of a chat model. A base of init_from brings its own: train "
            "one with tokenizer.chat=true."
            if tokenizer.takes_chat
            else "its entries are those of its model, and none can be added: begin with a chat model, or train a base "
            "with tokenizer.chat=true."
        )
        raise ConfigurationError(
            f"{source} gives conversations, and this tokenizer has the special tokens of no style ({style_names()}); "
            f"{way}"
        )


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigurationError(f"data.folder.{name}={value} must be positive; nearest valid: 1.")
    return value


def _not_negative(name: str, value: int) -> int:
    if value < 0:
        raise ConfigurationError(f"data.folder.{name}={value} is negative; nearest valid: 0.")
    return value


def _fitting_dtype(token_dtype: str | None, vocab_size: int) -> str:
    fitting = narrowest_dtype(vocab_size)
    if token_dtype is None:
        return fitting
    if token_dtype not in DTYPES:
        known = " or ".join(DTYPES)
        raise ConfigurationError(f"data.folder.token_dtype={token_dtype} is not {known}.{suggest(token_dtype, DTYPES)}")
    if vocab_size > num_ids(token_dtype):
        msg = (
            f"data.folder.token_dtype={token_dtype} holds {num_ids(token_dtype):,} entries, "
            f"tokenizer.vocab_size={vocab_size} has more; nearest valid: {fitting}."
        )
        raise ConfigurationError(msg)
    return token_dtype
