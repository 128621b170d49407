"""A disk that may lose power: what a folder can look like afterwards, by the promises of POSIX and no others.

`fsync` of a file keeps its bytes, `fsync` of a folder its names; all else may be there, be missing, or, of a write, be
there in part. A rename is whole or absent. Two modes: names of one folder reach the disk in their order, as a journal
keeps them, or in any order. The method is ALICE's (Pillai et al., OSDI 2014).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.harness.reliability.system_calls import Change

FOLDER: Final = None
Names = dict[str, int]


@dataclass
class File:
    """Bytes on the disk, the writes and truncations not yet there, and the bytes that the program sees."""

    on_disk: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, bytes | None]] = field(default_factory=list)  # place and bytes; None: its new size
    seen: bytearray = field(default_factory=bytearray)

    def write(self, at: int | None, data: bytes) -> None:
        """Write at a place, or at the end."""
        start = len(self.seen) if at is None else at
        self.waiting.append((start, data))
        _write(self.seen, start, data)

    def truncate(self, size: int) -> None:
        """Cut or lengthen to a size."""
        self.waiting.append((size, None))
        _truncate(self.seen, size)

    def sync(self) -> None:
        """Bring all to the disk."""
        self.on_disk, self.waiting = bytearray(self.seen), []

    def after_a_crash(self, rng: random.Random, kept: float) -> bytes:
        """Return what may be left, each write with this probability, and else nothing or a part of it."""
        found = bytearray(self.on_disk)
        for at, data in self.waiting:
            share = 1.0 if rng.random() < kept else rng.choice((0.0, rng.random()))
            if data is None:
                if share == 1.0:
                    _truncate(found, at)
            elif share > 0:
                _write(found, at, data[: int(share * len(data))])
        return bytes(found)


@dataclass
class Folder:
    """Names on the disk, the changes not yet there (each sets and removes names at once), and the names seen."""

    on_disk: Names = field(default_factory=dict)
    waiting: list[dict[str, int | None]] = field(default_factory=list)
    seen: Names = field(default_factory=dict)

    def change(self, names: dict[str, int | None]) -> None:
        """Set and remove names as one."""
        self.waiting.append(names)
        _rename(self.seen, names)

    def sync(self) -> None:
        """Bring all to the disk."""
        self.on_disk, self.waiting = dict(self.seen), []

    def after_a_crash(self, rng: random.Random, kept: float, *, in_order: bool) -> Names:
        """Return what may be left."""
        found = dict(self.on_disk)
        for names in self.waiting:
            if rng.random() < kept:
                _rename(found, names)
            elif in_order:
                break
        return found


class Disk:
    """One folder, `.`, and all below it, empty and safe at first."""

    def __init__(self) -> None:
        self._nodes: list[File | Folder] = [Folder()]

    def apply(self, change: Change) -> None:
        """Make one change."""
        if change.call == "open":
            self._open(change)
        elif change.call == "mkdir":
            self._add(change.path, Folder())
        elif change.call == "fsync":
            self._node(change.path).sync()
        elif change.call == "rename":
            self._move(change.path, change.to)
        elif change.call == "remove":
            folder, name = self._parent(change.path)
            folder.change({name: None})
        else:
            file = self._node(change.path)
            assert isinstance(file, File)
            if change.call == "write":
                file.write(change.at, change.data)
            else:
                file.truncate(change.size)

    def seen(self) -> dict[str, bytes | None]:
        """Return all paths as the program sees them, with the bytes of files and None for folders."""
        return self._tree(lambda folder: folder.seen, lambda file: bytes(file.seen))

    def after_a_crash(self, rng: random.Random, *, kept: float, in_order: bool) -> dict[str, bytes | None]:
        """Return all paths that may be left when the power fails now, as `seen`."""
        return self._tree(
            lambda folder: folder.after_a_crash(rng, kept, in_order=in_order),
            lambda file: file.after_a_crash(rng, kept),
        )

    def _tree(self, names_of: Callable[[Folder], Names], bytes_of: Callable[[File], bytes]) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}

        def walk(folder: Folder, prefix: str) -> None:
            for name, number in names_of(folder).items():
                node = self._nodes[number]
                found[prefix + name] = FOLDER if isinstance(node, Folder) else bytes_of(node)
                if isinstance(node, Folder):
                    walk(node, f"{prefix}{name}/")

        root = self._nodes[0]
        assert isinstance(root, Folder)
        walk(root, "")
        return found

    def _open(self, change: Change) -> None:
        folder, name = self._parent(change.path)
        if name not in folder.seen:
            if not change.creates:
                return
            self._add(change.path, File())
        file = self._node(change.path)
        if change.empties and isinstance(file, File) and file.seen:
            file.truncate(0)

    def _move(self, path: str, to: str) -> None:
        source, name = self._parent(path)
        target, new = self._parent(to)
        number = source.seen[name]
        if source is target:
            source.change({name: None, new: number})
        else:  # a journal keeps both as one; here the new name may come first, which is the harder case
            target.change({new: number})
            source.change({name: None})

    def _add(self, path: str, node: File | Folder) -> None:
        folder, name = self._parent(path)
        self._nodes.append(node)
        folder.change({name: len(self._nodes) - 1})

    def _node(self, path: str) -> File | Folder:
        if path == ".":
            return self._nodes[0]
        folder, name = self._parent(path)
        return self._nodes[folder.seen[name]]

    def _parent(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        folder = self._node(above or ".")
        assert isinstance(folder, Folder)
        return folder, name


def _write(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _rename(names: Names, change: dict[str, int | None]) -> None:
    for name, number in change.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number
