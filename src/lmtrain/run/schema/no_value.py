"""The refusal of a required setting without a value, with the word to type."""

from typing import Final

from lmtrain.errors import ConfigurationError

MISSING: Final = "???"
# As a shell takes them; of a file or name of the person's own, an example.
EXAMPLES: Final = {
    "source.paths": "'source.paths=[my/notes]'",
    "source.name": "source.name=roneneldan/TinyStories",
    "tokenizer.name": "tokenizer.name=gpt2",
    "data.folder.format": "data.folder.format=nanogpt",
    "data.folder.train": "'data.folder.train=[train.bin]'",
}
OF_PAIRS: Final = {"source.paths": "'source.paths=[pairs.jsonl]'"}  # of a source of pairs of answers


def no_value(key: str, *, of_pairs: bool = False) -> ConfigurationError:
    """Return the refusal of a key that has no default, perhaps of a source of pairs of answers."""
    example = (EXAMPLES | OF_PAIRS if of_pairs else EXAMPLES).get(key, f"{key}=...")
    return ConfigurationError(f"{key} has no value; set it on the command line: {example}")
