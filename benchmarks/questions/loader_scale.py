"""What a corpus of any size costs to start on: seconds and memory against tokens, over five decades.

The ids are a sparse file (all zeros, no disk), the document ends are real; each size runs in a fresh process. Opening,
the first batch and 200 more are measured for contiguous windows; building the index for best_fit. Memory is what the
process holds beyond what it had after its imports: private memory, and pages of the mapped files besides.

    python benchmarks/questions/loader_scale.py loader_scale.png       # a table, and a plot
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

SHARD_TOKENS = 1 << 30
CONTEXT_TOKENS = 2048
DECADES = (6, 7, 8, 9, 10, 11)
BUILD_UP_TO = 10  # an index of 10^11 tokens is only more of the same


def write_sparse_corpus(folder: Path, num_tokens: int, *, has_ends: bool) -> None:
    """Write shards of zeros that take no disk, and the ends of web-like documents where asked."""
    from lmtrain.data.manifest import Manifest, Shard, SplitManifest
    from lmtrain.data.shard_writer import write_manifest

    random = np.random.default_rng(0)
    shards: list[Shard] = []
    for number, first in enumerate(range(0, num_tokens, SHARD_TOKENS)):
        size = min(SHARD_TOKENS, num_tokens - first)
        name = f"train_{number:05d}.ds"
        with (folder / name).open("wb") as file:
            file.truncate(2 * size)
        ends = np.array([size])
        if has_ends:
            lengths = np.exp(random.normal(np.log(616), 0.984, size // 800)).astype(np.int64) + 2
            ends = np.cumsum(lengths)
            ends = np.append(ends[ends < size], size)
        ends.astype("<u8").tofile(folder / f"{name}.index")
        shards.append(Shard(name, size, len(ends), "", ""))
    split = SplitManifest(sum(s.num_documents for s in shards), num_tokens, 0, tuple(shards))
    manifest = Manifest(
        name="sparse", dtype="uint16", vocab_size=50_000, tokenizer_fingerprint="0" * 64, splits={"train": split}
    )
    write_manifest(folder, manifest)


def start(folder: Path, packing_name: str) -> dict[str, Any]:
    """Open a corpus in this process, read batches, and tell what that took."""
    import torch

    from lmtrain.accounting.batches import BatchPlan
    from lmtrain.data.packing import BestFit, Contiguous
    from lmtrain.training.datamodule import TokenDataModule

    batch = BatchPlan(context_tokens=CONTEXT_TOKENS, micro_batch_sequences=16, accumulation_micro_steps=1, num_ranks=1)
    packing = {"contiguous": Contiguous(), "best_fit": BestFit(document_mask=True)}[packing_name]
    before, started = memory(), time.perf_counter()
    datamodule = TokenDataModule(folder=folder, batch=batch, seed=0, packing=packing)
    on_cpu = SimpleNamespace(root_device=torch.device("cpu"))
    datamodule.trainer = SimpleNamespace(global_rank=0, global_step=0, strategy=on_cpu)
    batches: Iterator[Any] = iter(datamodule.train_dataloader())
    next(batches)
    seconds = time.perf_counter() - started
    for _ in islice(batches, 200):
        pass
    after = memory()
    return {"seconds": seconds, **{name: (after[name] - before[name]) / 1e6 for name in after}}


def memory() -> dict[str, int]:
    """Return this process's private bytes, the most there were of all, and mapped pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return {"private_mb": 1024 * kib["RssAnon"], "file_mb": 1024 * kib["RssFile"], "peak_mb": 1024 * kib["VmHWM"]}


def run(decade: int, packing_name: str) -> dict[str, Any]:
    """Measure one size in a fresh process."""
    with tempfile.TemporaryDirectory() as temporary:
        write_sparse_corpus(Path(temporary), 10**decade, has_ends=packing_name == "best_fit")
        command = [sys.executable, __file__, "--start", temporary, packing_name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {"tokens": 10**decade, "packing": packing_name, **json.loads(told.splitlines()[-1])}


def plot(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Draw seconds and memory against tokens."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = list(rows)
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for axis, names, title in (
        (axes[0], ("seconds",), "from opening to the first batch, seconds"),
        (axes[1], ("private_mb", "file_mb"), "memory beyond imports, MB (dashed: pages of mapped files)"),
    ):
        for packing in ("contiguous", "best_fit"):
            mine = [row for row in rows if row["packing"] == packing]
            for name, style in zip(names, ("o-", "s--"), strict=False):
                label = packing if style == "o-" else None
                colour = "tab:blue" if packing == "contiguous" else "tab:orange"
                tokens = [row["tokens"] for row in mine]
                axis.loglog(tokens, [max(row[name], 1e-3) for row in mine], style, color=colour, label=label)
        axis.set(xlabel="tokens of the corpus", title=title)
        axis.grid(visible=True, which="major", alpha=0.3)
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure every size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("png", nargs="?", type=Path)
    parser.add_argument("--start", nargs=2, metavar=("FOLDER", "PACKING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        print(json.dumps(start(Path(arguments.start[0]), arguments.start[1])))
        return
    rows: list[dict[str, Any]] = []
    print("| packing | tokens | seconds to the first batch | private MB | mapped file MB | peak MB |")
    print("|---|---|---|---|---|---|")
    for packing in ("contiguous", "best_fit"):
        for decade in DECADES:
            if packing == "contiguous" or decade <= BUILD_UP_TO:
                rows.append(row := run(decade, packing))
                sizes = " | ".join(f"{row[name]:.1f}" for name in ("private_mb", "file_mb", "peak_mb"))
                print(f"| {packing} | 10^{decade} | {row['seconds']:.3f} | {sizes} |", flush=True)
    if arguments.png:
        plot(rows, arguments.png)


if __name__ == "__main__":
    main()
