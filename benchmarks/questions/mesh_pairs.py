"""Every pair of the sizes of `strategy=mesh` on four kinds of model: 2 x 2 gloo ranks compared with one process.

A cell is the largest difference of a step's loss, gradient norm and gradients: a share of the number itself, or of the
largest gradient of its tensor (at least a hundredth of the largest of all). `lmtrain parity` compares them, and the
weights after each step; a mesh that a config refuses shows the refusal's reason. It prints the table in Markdown.

    OMP_NUM_THREADS=1 python benchmarks/questions/mesh_pairs.py --steps 2
"""

import argparse
import re
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path

from lmtrain.accounting.observed.parity_checks import Parity
from lmtrain.cli.commands.parity import RankComparison
from lmtrain.errors import ConfigurationError

TINY = [
    "debug=tiny",
    "data=synthetic",
    "data.folder.num_tokens=60000",
    "tokenizer=byte_level",
    "tokenizer.vocab_size=512",
    "optimizer=adamw",
    "batch.context_tokens=32",
    "batch.micro_batch_sequences=1",
    "batch.tokens_per_step=256",
]
SIZES = ["model.num_layers=2", "model.width=32", "model.num_heads=4", "model.vocab_size=512"]
EXPERTS = ["model.feed_forward_width=16", "model.experts.num_experts=4", "model.experts.num_experts_per_token=2"]
MODELS = {
    "dense": ["model=llama_tiny", *SIZES, "model.value_embedding_layers=[]", "model.feed_forward_width=48"],
    "MoE": ["model=mixtral_tiny", *SIZES, *EXPERTS],
    "MLA": [
        *("model=deepseek_v2_lite", *SIZES, *EXPERTS, "model.experts.shared_width=16", "model.experts.dense_width=32"),
        *("model.latent_attention.latent=8", "model.latent_attention.unrotated=8"),
        *("model.latent_attention.rotated=4", "model.latent_attention.value=8"),
    ],
    "nano": [*SIZES, "model.num_bigram_buckets=64", "model.value_embedding_layers=[1]", "optimizer=muon"],
}
SIZE_OF = {
    "copies": "replicate_size",
    "shards": "shard_size",
    "stages": "pipeline_size",
    "context": "context_size",
    "tensor": "tensor_size",
    "experts": "expert_size",
}
NUM_RANKS, TOLERANCE = 4, 1e-4
COMPARED = ("loss", "gradient norm", "gradient")


def words_of(pair: tuple[str, str]) -> tuple[str, ...]:
    """Return a mesh with two ranks of each kind; experts are shared out over all shards or context groups."""
    sizes = {"shard_size": "1"} | {SIZE_OF[axis]: "2" for axis in pair}
    if "experts" in pair:
        sizes["shard_size"] = "null"
    schedule = ["strategy.schedule=gpipe"] if "stages" in pair else []  # takes a step of one micro-batch
    return ("strategy=mesh", *(f"strategy.{name}={size}" for name, size in sizes.items()), *schedule)


def cell_of(found: Parity) -> str:
    """Return the largest difference, in bold where parity ends with 1."""
    if found.failure:
        return f"**{found.failure}**"
    largest = max(each.relative for each in found.differences if each.kind in COMPARED)
    return f"{largest:.0e}" if found.is_equal else f"**{largest:.0e}**"


def column_of(model: str, num_steps: int, root: Path) -> dict[tuple[str, str], str]:
    """Compare one model on every pair, all in one start of the ranks."""
    asked = argparse.Namespace(ranks=NUM_RANKS, steps=num_steps, tolerance=TOLERANCE)
    comparison = RankComparison([*TINY, *MODELS[model]], asked, root=root)
    cells: dict[tuple[str, str], str] = {}
    accepted: list[tuple[str, str]] = []
    for pair in combinations(SIZE_OF, 2):
        try:
            comparison.prepared(words_of(pair))
            accepted.append(pair)
        except ConfigurationError as refused:
            cells[pair] = re.split(r"\. Did you mean|[.;] ", str(refused))[0]
    for pair, found in zip(accepted, comparison.of([words_of(pair) for pair in accepted]), strict=True):
        cells[pair] = cell_of(found)
    return cells


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
arguments = parser.parse_args()
columns: dict[str, dict[tuple[str, str], str]] = {}
for model in arguments.models:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        columns[model] = column_of(model, arguments.steps, Path(folder))
    print(f"{model}: {time.monotonic() - started:.0f} s", file=sys.stderr)
print(f"| 2 x 2 ranks | {' | '.join(columns)} |")
print("|---" * (1 + len(columns)) + "|")
for pair in combinations(SIZE_OF, 2):
    print(f"| {pair[0]} x {pair[1]} | {' | '.join(cells[pair] for cells in columns.values())} |")
