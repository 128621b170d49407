"""Changed bytes in checkpoints and prepared data: is any of them loaded?

Each trial changes one file of a real run's newest checkpoint, of one file or in shards, or of its prepared data: a bit
flipped, bytes changed, swapped, lost, doubled or zeroed, another size, another file's bytes, no file at all; in a
manifest the same. Then the code of a real start decides: for a checkpoint that of `resume=auto` and of loading, for
data that of opening it, of its tokenizer, and of the check held before any save. A folder is refused, or the content
read is the one written: a manifest may change without another meaning, as by a space.

    python benchmarks/questions/mutations.py --trials 100000 --json mutations.json
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402

from benchmarks.harness.reliability import warm_starts  # noqa: E402
from lmtrain.data.dataset_folder import require_whole  # noqa: E402
from lmtrain.data.shards import open_dataset  # noqa: E402
from lmtrain.errors import LMTRAIN_ERRORS  # noqa: E402
from lmtrain.tokenizers.loading import load_tokenizer  # noqa: E402
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO  # noqa: E402
from lmtrain.training.checkpointing.checkpoints import newest_whole  # noqa: E402

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a file system without a disk
KINDS: Final = {"one file": [], "shards": ["strategy=fsdp", "trainer.devices=2"]}


def mutate(path: Path, content: bytes, rng: random.Random, others: list[bytes]) -> str:
    """Change a file in one way that leaves other bytes, or none, and return the way."""
    while True:
        way = rng.choice(WAYS)
        if way == "missing":
            path.unlink()
            return way
        changed = _changed(way, content, rng, others)
        if changed != content:
            path.write_bytes(changed)
            return way


WAYS: Final = (
    "bit", "bit", "byte", "swapped", "lost", "doubled", "zeroed", "cut", "longer", "another file's", "missing",
)  # fmt: skip


def _changed(way: str, content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    if way == "another file's":
        return rng.choice(others)
    if way == "longer" or not content:
        return content + rng.randbytes(rng.randint(1, 64))
    at, end = sorted((rng.randrange(len(content)), rng.randrange(len(content))))
    end = max(at + 1, min(end, at + rng.choice((1, 8, 512, 1 << 20))))
    part = content[at:end]
    new = {
        "bit": bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:],
        "byte": bytes([rng.randrange(256)]) + part[1:],
        "swapped": part[::-1],
        "lost": b"",
        "doubled": part + part,
        "zeroed": bytes(len(part)),
        "cut": None,
    }[way]
    return content[:at] if new is None else content[:at] + new + content[end:]


def checkpoint_reader(folder: Path) -> Callable[[], str | None]:
    """Return a reader of a whole checkpoint: None where it holds what it held at first, else what is new in it."""

    def read() -> tuple[Any, Any]:
        facts, _ = newest_whole(folder.parent)
        assert facts is not None
        return facts, AtomicCheckpointIO().load_checkpoint(facts.path)

    facts, state = read()

    def difference() -> str | None:
        found, loaded = read()
        if found != facts:
            return "its manifest's facts"
        return None if _same(loaded, state) else "its state"

    return difference


def data_reader(folder: Path) -> Callable[[], str | None]:
    """Return a reader of a whole data set."""

    def read() -> tuple[Any, Any, Any]:
        dataset = open_dataset(folder)
        dataset.require_tokenizer(load_tokenizer(dataset.tokenizer_folder).fingerprint)
        require_whole(dataset)
        splits = {name: dataset.split(name) for name in dataset.manifest.splits}
        return dataset.manifest, {name: one.window(0, one.num_tokens).tobytes() for name, one in splits.items()}, splits

    manifest, tokens, _ = read()

    def difference() -> str | None:
        found, ids, _ = read()
        if ids != tokens:
            return "its tokens"
        return None if found == manifest else "its manifest"

    return difference


def trials(folder: Path, read: Callable[[], str | None], *, number: int, rng: random.Random) -> dict[str, Any]:
    """Change a folder's files so often, and count what the reader made of it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {path: path.read_bytes() for path in files}
    counts, ways, loaded = Counter[str](), Counter[str](), Counter[str]()
    began = time.process_time()
    for _ in range(number):
        path = rng.choice(files)
        others = [content for other, content in contents.items() if other != path]
        way = mutate(path, contents[path], rng, others)
        ways[way] += 1
        try:
            wrong = read()
        except LMTRAIN_ERRORS:
            counts["refused"] += 1
        except Exception as crash:  # noqa: BLE001  # not loaded, but no line for a person either
            counts["refused by an exception of another kind"] += 1
            loaded[f"{path.name} ({way}): {crash!r}"[:150]] += 1
        else:
            counts["loaded with another content" if wrong else "loaded, the same content"] += 1
            if wrong:
                loaded[f"{wrong}, by {path.name} ({way})"] += 1
        path.write_bytes(contents[path])
    return {
        "trials": number, "files": len(files), **counts, "ways": dict(ways), "wrong": dict(loaded.most_common(8)),
        "cpu_seconds": round(time.process_time() - began),
    }  # fmt: skip


def main() -> int:
    """Make the folders, run the trials and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=IN_MEMORY if IN_MEMORY.is_dir() else None)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    warm_starts.import_the_trainer()
    rng, figures = random.Random(asked.seed), {}
    with tempfile.TemporaryDirectory(prefix="mutations_", dir=asked.scratch) as scratch:
        share, folder = asked.trials // 3, Path(scratch)
        for kind, words in KINDS.items():
            num_ranks = 2 if words else 1
            job = warm_starts.compose([*warm_starts.WORDS, *words, "budget.steps=3"], num_ranks=num_ranks)
            folder = Path(scratch) / kind.replace(" ", "_")
            ended = warm_starts.train(job, folder=folder, num_ranks=num_ranks)
            if ended.code:
                raise RuntimeError(ended.said[-2000:])
            (newest,) = (folder / "a/checkpoints").glob("step_*")
            figures[f"checkpoint of {kind}"] = trials(newest, checkpoint_reader(newest), number=share, rng=rng)
        data = Path(json.loads((folder / "a/run.json").read_text())["data"])
        copy = Path(scratch) / "data" / data.name
        shutil.copytree(data, copy)
        rest = asked.trials - 2 * share
        figures["prepared data"] = trials(copy, data_reader(copy), number=rest, rng=rng)
    print(json.dumps(figures, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any("loaded with another content" in counts for counts in figures.values()))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


if __name__ == "__main__":
    sys.exit(main())
