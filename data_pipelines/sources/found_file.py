"""A file of text, wherever it lies."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A file: its place, and the name of its documents, the same at any place.

    `changed` is another word whenever the content is another; `is_named` where a person named this very file, and
    `is_searched_for` where it was come upon in a folder. `is_held_out`: its documents are for validation.
    """

    name: str
    address: str
    num_bytes: int
    changed: str
    is_named: bool = False
    is_searched_for: bool = False
    is_held_out: bool = False

    @property
    def is_local(self) -> bool:
        """Tell whether the address is a path of this machine."""
        return "://" not in self.address
