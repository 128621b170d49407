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
# The same of one option's key alone, by its target.
OF_TARGETS: Final = {
    "data_pipelines.sources.preference_pairs.PreferencePairs": {"source.paths": "'source.paths=[pairs.jsonl]'"},
}


def no_value(key: str, *, target: object = None) -> ConfigurationError:
    """Return the refusal of a key that has no default, in an option of that target."""
    example = OF_TARGETS.get(str(target), {}).get(key) or EXAMPLES.get(key, f"{key}=...")
    return ConfigurationError(f"{key} has no value; set it on the command line: {example}")
