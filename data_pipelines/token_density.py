"""How many bytes of text a token stands for, by type of text: the measure for comparing tokenizers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtrain.errors import ConfigurationError, EnvironmentProblem, suggest
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.hub import find_tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

SAMPLES = Path(__file__).with_name("text_samples.json")  # written for this, a kilobyte or so of each type
HELD_OUT = "held-out text"
TIKTOKEN = "tiktoken:"

CountTokens = Callable[[Sequence[str]], int]
Density = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Competitor:
    """A tokenizer as the comparison sees it."""

    name: str
    vocab_size: int
    count_tokens: CountTokens


def text_samples() -> dict[str, str]:
    """Return the built-in text of each type."""
    return foreign_json.read(SAMPLES)


def bytes_per_token(competitors: Sequence[Competitor], *, held_out: Sequence[str]) -> Density:
    """Return, for each type of text and then each tokenizer, the bytes a token stands for; more is denser."""
    texts: dict[str, Sequence[str]] = {name: [text] for name, text in text_samples().items()}
    if held_out:
        texts[HELD_OUT] = held_out
    return {
        kind: {one.name: _num_bytes(chosen) / one.count_tokens(chosen) for one in competitors}
        for kind, chosen in texts.items()
    }


def competitor(tokenizer: Tokenizer, name: str) -> Competitor:
    """Return one of our tokenizers for the comparison."""
    return Competitor(name, tokenizer.vocab_size, lambda texts: len(tokenizer.encode_batch_flat(texts)[0]))


def find_competitor(name: str) -> Competitor:
    """Return the tokenizer in a folder or file, of a name on the hub, or `tiktoken:NAME` when it is on this machine.

    Raises:
        ConfigurationError: There is none of that name.
        DataError: It is damaged, or loses text.
        EnvironmentProblem: It would have to be downloaded and cannot be.
    """
    if name.startswith(TIKTOKEN):
        return _of_tiktoken(name)
    return competitor(load_tokenizer(find_tokenizer(name, key="compare")), name)


def _of_tiktoken(name: str) -> Competitor:
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]  # not installed by us
    except ImportError as problem:
        raise EnvironmentProblem(f"compare={name} needs tiktoken; install it: pip install tiktoken.") from problem
    wanted = name.removeprefix(TIKTOKEN)
    known = tiktoken.list_encoding_names()
    if wanted not in known:
        raise ConfigurationError(f"compare={name}: tiktoken has {', '.join(known)}.{suggest(wanted, known)}")
    try:
        encoding = tiktoken.get_encoding(wanted)
    except Exception as problem:  # of whichever HTTP library it uses
        msg = f"compare={name} is not on this machine and cannot be downloaded; go online once, or leave it out."
        raise EnvironmentProblem(msg) from problem
    return Competitor(name, encoding.n_vocab, lambda texts: sum(map(len, encoding.encode_ordinary_batch(list(texts)))))


def _num_bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)
