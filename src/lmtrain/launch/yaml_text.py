"""Plain values as YAML for people: keys in their order, text of several lines as a block."""

from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(*documents: Any) -> str:
    """Return documents one after the other; a line is never broken."""
    dumped: Sequence[str] = [
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True) for each in documents
    ]
    return "---\n".join(dumped)
