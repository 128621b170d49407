"""From a source of text to a folder of verified shards, once.

    source -> clean -> deduplicate -> split -> train tokenizer -> encode -> compress held-out text -> verify

The folder is named after everything that decides its content, so the same request finds the same folder at once.
"""

from collections.abc import Mapping
from pathlib import Path

from data_pipelines.build import Build
from data_pipelines.build_request import BuildRequest
from data_pipelines.engines.local import LocalEngine
from data_pipelines.sources.base import Source
from data_pipelines.stages.encode import WholeConversations
from data_pipelines.stages.split import held_out_of
from data_pipelines.stages.stage import Engine, Stage
from data_pipelines.stages.train_tokenizer import FixedSpec, TokenizerSpec
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.data.dataset_folder import build_folder
from lmtrain.data.manifest import DatasetFolder, narrowest_dtype
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.chat import STYLE_NAMES, styles_of, writes_conversations


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
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
    references: bool = True,
    shard_tokens: int = 100_000_000,
    num_processes: int | None = None,
) -> DatasetFolder:
    """Return the folder of verified shards for these settings, found in `root` or built now.

    Documents pass the stages of `cleaning`, then of `deduplicate`, wherever `engine` runs them (None: here).
    `token_budget` counts training tokens, end-of-text included: reading stops with the document at the budget; None
    takes all. A shorter source is refused, unless `allow_short`. A hash of the documents' names holds out, unless the
    source names its validation documents.
    `references` compresses the held-out text with gzip and xz.
    `num_processes` encode: 0 encodes on a thread, None uses processes where there are cores.

    Raises:
        ConfigurationError: Fractions without a rest, a number that is too small, or conversations with a tokenizer that
            cannot write them.
        DataError: No text, too little text, or a folder damaged after it was built.
        EnvironmentProblem: The root cannot be written. Finished work is kept, and the same call continues from it.
    """
    require_count("data.folder.token_budget", token_budget)
    require_count("data.folder.shard_tokens", shard_tokens)
    require_number("data.folder.num_processes", num_processes, at_least=0, usual="0")
    whole = _whole_conversations(source, tokenizer)
    request = BuildRequest(
        source=source,
        stages=(*(cleaning or {}).values(), whole, *(deduplicate or {}).values()),
        spec=tokenizer,
        held_out=held_out_of(source, fractions=(validation_fraction, test_fraction)),
        shard_tokens=shard_tokens,
        token_dtype=narrowest_dtype(tokenizer.vocab_size),
        token_budget=token_budget,
    )
    build = Build(
        request,
        engine=engine or LocalEngine(),
        num_processes=num_processes,
        allow_short=allow_short,
        references=references,
    )
    folder = Path(root) / f"{source.name}-{request.fingerprint[:12]}"
    build_folder(folder, build, is_resumable=True)
    open_dataset(folder)  # refuses a damaged one
    return DatasetFolder(folder)


def _whole_conversations(source: Source, tokenizer: TokenizerSpec) -> WholeConversations:
    """Return the check of conversations, by the rules of the tokenizer's style too."""
    if not source.has_conversations:
        return WholeConversations()
    styles = styles_of(tokenizer.special_tokens)
    if not styles and isinstance(tokenizer, FixedSpec) and writes_conversations(tokenizer.tokenizer):
        return WholeConversations(tokenizer=tokenizer.tokenizer)
    if not styles:
        fix = "set tokenizer.chat=true (also for the base of init_from), or use a chat model's tokenizer"
        rule = f"{source.name} gives conversations, and the tokenizer lacks the special tokens of a style"
        raise ConfigurationError(f"{rule} ({STYLE_NAMES}) and a chat template; {fix}.")
    return WholeConversations(style=styles[0].name)
