"""The changes that a program makes to one folder, in their order, from what `strace` saw of its system calls."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CALLS: Final = (
    "openat,open,creat,lseek,write,writev,pwrite64,ftruncate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,fsync,fdatasync"
)
UNSEEN: Final = "copy_file_range,sendfile,link,linkat,symlink,symlinkat,truncate,pwritev,pwritev2,fallocate"
_CALL: Final = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_OPENED: Final = re.compile(r"(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True)
class Change:
    """One system call: its name, its paths below the folder, and the bytes and place of a write.

    `at` is None where a file grows at its end; `size` is that of a truncation.
    """

    call: str
    path: str
    to: str = ""
    data: bytes = b""
    at: int | None = None
    size: int = 0
    creates: bool = False
    empties: bool = False
    is_folder: bool = False


def command(trace: Path) -> list[str]:
    """Return the words before a traced program's own; all that is written is in the trace, as hexadecimal digits."""
    return ["strace", "-f", "-y", "-xx", "-s", "1000000000", "-e", f"trace={CALLS},{UNSEEN}", "-o", str(trace)]


def read_changes(trace: Path, folder: Path) -> Iterator[Change]:
    """Yield the changes to a folder and below in a trace.

    Raises:
        ValueError: One of them is a call that is not understood here.
    """
    offsets: dict[tuple[str, str], int | None] = {}
    for text in _whole_calls(trace):
        found = _CALL.match(text)
        if found is None or int(found[3]) < 0:
            continue
        call, arguments, result = found[1], found[2], int(found[3])
        paths = _paths(call, arguments)
        inside = [_below(path, folder) for path in paths]
        if not inside or all(path is None for path in inside):
            continue
        if call in UNSEEN.split(","):
            raise ValueError(f"{call} of {paths} is not understood")
        names = [path for path in inside if path is not None]
        if names == ["."] and call not in ("fsync", "fdatasync"):  # it is there before all else
            continue
        yield from _change(call, arguments, result, names, offsets)


def _whole_calls(trace: Path) -> Iterator[str]:
    """Yield each call once it has returned, without its process."""
    waiting: dict[str, str] = {}
    with trace.open() as lines:
        for line in lines:
            process, _, text = line.rstrip("\n").partition(" ")
            text = text.lstrip()
            if text.endswith("<unfinished ...>"):
                waiting[process] = text.removesuffix("<unfinished ...>")
            elif text.startswith("<... "):
                yield waiting.pop(process, "") + text.partition(" resumed>")[2]
            else:
                yield text


def _change(
    call: str, arguments: str, result: int, names: Sequence[str], offsets: dict[tuple[str, str], int | None]
) -> Iterator[Change]:
    name = names[0]
    if call in ("openat", "open", "creat"):
        offsets[str(result), name] = None if "O_APPEND" in arguments else 0
        if "O_CREAT" in arguments or "O_TRUNC" in arguments:
            yield Change("open", name, creates="O_CREAT" in arguments, empties="O_TRUNC" in arguments)
    elif call == "lseek":
        offsets[_number(arguments), name] = result
    elif call in ("write", "writev", "pwrite64"):
        yield _write(call, arguments, result, name, offsets)
    elif call == "ftruncate":
        yield Change("truncate", name, size=int(arguments.rpartition(", ")[2]))
    elif call.startswith("rename"):
        yield Change("rename", name, to=names[1])
    elif call in ("unlink", "unlinkat", "rmdir"):
        yield Change("remove", name, is_folder=call == "rmdir" or "AT_REMOVEDIR" in arguments)
    elif call in ("mkdir", "mkdirat"):
        yield Change("mkdir", name)
    elif call in ("fsync", "fdatasync"):
        yield Change("fsync", name)


def _write(call: str, arguments: str, result: int, name: str, offsets: dict[tuple[str, str], int | None]) -> Change:
    data = b"".join(map(_bytes, _TEXT.findall(arguments)))[:result]
    if len(data) != result:
        raise ValueError(f"{call} to {name} wrote {result} bytes, and the trace has {len(data)}")
    if call == "pwrite64":
        return Change("write", name, data=data, at=int(arguments.rpartition(", ")[2]))
    key = (_number(arguments), name)
    at = offsets.get(key, 0)
    if at is not None:
        offsets[key] = at + result
    return Change("write", name, data=data, at=at)


def _paths(call: str, arguments: str) -> list[str]:
    """Return the absolute paths that a call is about: of its open file, or of its names."""
    if call in ("write", "writev", "pwrite64", "ftruncate", "fsync", "fdatasync", "lseek", "fallocate", "sendfile"):
        found = _OPENED.match(arguments)
        return [_bytes(found[2]).decode()] if found else []
    texts = [_bytes(text).decode() for text in _TEXT.findall(arguments)]
    bases = [_bytes(base).decode() for _, base in _OPENED.findall(arguments)]
    if len(bases) == len(texts):
        return [str(Path(base) / text) for base, text in zip(bases, texts, strict=True)]
    return texts


def _below(path: str, folder: Path) -> str | None:
    if path == str(folder):
        return "."
    return path.removeprefix(f"{folder}/") if path.startswith(f"{folder}/") else None


def _number(arguments: str) -> str:
    return arguments.partition("<")[0]


def _bytes(digits: str) -> bytes:
    return bytes.fromhex(digits.replace("\\x", ""))
