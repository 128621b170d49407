"""From a source of text to a folder of verified shards, once.

    source -> clean -> split -> spool -> train tokenizer -> encode -> compress held-out text -> verify

The folder is named after everything that decides its content, so the same question gets the same folder back at once.
"""

from dataclasses import asdict
from pathlib import Path

from data_pipelines.build import CODE_VERSION, Build, Settings
from data_pipelines.progress import tell
from data_pipelines.sources.base import Source
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.train_tokenizer import TokenizerSpec
from lmtrain.data.atomic_folder import build_folder
from lmtrain.data.shards import DTYPES, narrowest_dtype, num_ids, open_dataset
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.tokenizers.base import sha256_of


def prepare(
    *,
    source: Source,
    tokenizer: TokenizerSpec,
    root: str = "data",
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
    min_document_characters: int = 1,
    shard_tokens: int = 100_000_000,
    token_dtype: str | None = None,
    num_processes: int | None = None,
) -> Path:
    """Return the folder of verified shards for these settings, found in `root` or built now.

    `token_dtype` None is the narrowest that holds the vocabulary. `num_processes` encode the text: 0 does it on this
    process's threads, None takes processes where there are many cores and much text.

    Raises:
        ConfigurationError: Fractions that leave nothing, or a vocabulary too large for the type.
        DataError: No text, too little text, or a folder that was damaged after it was built.
        EnvironmentProblem: The root cannot be written.
    """
    build = Build(
        source=source,
        source_fingerprint=source.fingerprint(),
        spec=tokenizer,
        settings=Settings(
            held_out=HeldOut(validation_fraction=validation_fraction, test_fraction=test_fraction),
            min_document_characters=min_document_characters,
            shard_tokens=_positive("shard_tokens", shard_tokens),
            token_dtype=_fitting_dtype(token_dtype, tokenizer.vocab_size),
        ),
        num_processes=num_processes,
    )
    folder = Path(root) / f"{source.name}-{_fingerprint(build)[:12]}"
    is_new = not folder.is_dir() and build_folder(folder, build, tell=tell)
    splits = open_dataset(folder).manifest.splits.items()
    tokens = ", ".join(f"{split.num_tokens:,} {name}" for name, split in splits)
    tell(f"data: {folder} ({tokens} tokens{'' if is_new else ', prepared before'})")
    return folder


def _fingerprint(build: Build) -> str:
    return sha256_of(
        {
            "code_version": CODE_VERSION,
            "source": build.source_fingerprint,
            "tokenizer": build.spec.fingerprint_parts(),
            "settings": asdict(build.settings),
        }
    )


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigurationError(f"data.folder.{name}={value} must be positive; nearest valid: 1.")
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
