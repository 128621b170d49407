"""Measure each model of conf/model for the table that ships: `python benchmarks/questions/known_models.py [MODEL ...]`.

`lmtrain plan` then answers in a second for them on a machine that has never seen torch work. Each is measured on a GPU
of the hardware table, as DDP and as FSDP compute, with and without recomputation, and as a CPU trains it. Where a
second context length confirms that memory grows with the tokens alone, one measurement tells of all contexts up to the
model's longest; else each context has its own. Rows of other models stay as they are.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtrain.accounting.model.model_facts import MEMORY, ModelFacts, known_facts
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.planning.known_models import TABLE, key_of
from lmtrain.run.planning.measured_model import measure_model
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig, read_config

Config = dict[str, Any]
ON_A_GPU = ("cluster=h100_8x", "precision=bf16_mixed")
SETTINGS: list[tuple[str, ...]] = [
    *(
        (*ON_A_GPU, f"strategy={s}", f"recompute={r}")
        for s, r in itertools.product(("ddp", "fsdp"), ("none", "every_block"))
    ),
    ("precision=bf16_mixed",),
    ("precision=fp32",),
]
CPU_CONTEXTS = (256, 1024)  # of one's own: attention goes over blocks of rows; the second one for small models alone
GPU_CONTEXTS = (256, 2048)  # measured at the first, confirmed at the second
OWN_CONTEXTS = (256, 1024, 2048)  # of models whose shape depends on the context
SMALL_PARAMETERS = 1e9
FEW_AND_MANY = (1, 2, 64)  # sequences
WITHIN = 0.03  # of activations and workspace


@dataclass(frozen=True)
class Measured:
    """A setting at one context."""

    key: str
    context_tokens: int
    facts: ModelFacts


def main(words: list[str]) -> int:
    """Measure the named models, or all, and write their rows anew."""
    table: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {"models": {}, "settings": {}}
    for model in words or all_models():
        for name in [name for name in table["models"] if name.partition("@")[0] == model]:
            del table["models"][name]
        table["settings"] = {key: rows for key, rows in table["settings"].items() if _model_of(rows) != model}
        for setting in SETTINGS:
            for name, key, facts, row in rows_of(model, setting):
                table["models"][name] = facts
                table["settings"].setdefault(key, []).append(row)
        write(table)
        print(f"{model}: {TABLE.stat().st_size / 1e3:.0f} kB in all", flush=True)
    return 0


def all_models() -> list[str]:
    """List the options of the group; two have their shape from the folder that they are of."""
    names = {path.stem for path in (conf_folder() / "model").glob("*.yaml")}
    return sorted(names - {"imported", "transformers"})


def rows_of(model: str, words: tuple[str, ...]) -> Iterator[tuple[str, str, Config, Config]]:
    """Yield the model's name in the table, the setting's key, the model's own facts, and the setting's row."""
    is_gpu, longest = words[0].startswith("cluster"), longest_context(model)
    if is_gpu and longest is not None:
        first = measured(model, words, GPU_CONTEXTS[0])
        most = min(longest, *(layer.window_tokens or longest for layer in first.facts.shape.attention))
        facts, row = _written(first, model, 1, most)
        if words == SETTINGS[0] and GPU_CONTEXTS[1] <= most:
            table = {"models": {model: facts}, "settings": {first.key: [row]}}
            confirm(known_facts(table, first.key, GPU_CONTEXTS[1]), measured(model, words, GPU_CONTEXTS[1]))
        yield model, first.key, facts, row
        return
    for context in OWN_CONTEXTS if is_gpu else CPU_CONTEXTS:
        found = measured(model, words, context)
        name = model if longest else f"{model}@{context}"
        yield name, found.key, *_written(found, name, context, context)
        if not is_gpu and found.facts.shape.num_parameters > SMALL_PARAMETERS:
            return


def confirm(of_table: ModelFacts | None, other: Measured) -> None:
    """Compare what the table gives with a measurement at another context."""
    assert of_table
    for sequences in FEW_AND_MANY:
        assert of_table.activations.of(sequences) == other.facts.activations.of(sequences), (
            other.context_tokens,
            sequences,
        )
        there, found = (
            facts.activations.of(sequences) + facts.block_workspace_bytes(sequences)
            for facts in (of_table, other.facts)
        )
        ratio = there / found
        assert abs(ratio - 1) < WITHIN, (other.context_tokens, sequences, ratio)


def longest_context(model: str) -> int | None:
    """Return the longest context of a model, None for one that is made for the context it trains at."""
    config, other = (compose_config([f"model={model}", f"batch.context_tokens={n}"]) for n in (256, 512))
    longest = config["model"]["max_context_tokens"]
    return longest if longest == other["model"]["max_context_tokens"] else None


def measured(model: str, words: tuple[str, ...], context_tokens: int) -> Measured:
    """Measure a model in one setting at one context."""
    config, setting = composed(model, words, context_tokens)
    return Measured(key_of(config, setting), context_tokens, measure_model(config, setting))


def composed(model: str, words: tuple[str, ...], context_tokens: int) -> tuple[RunConfig, Setting]:
    """Compose the config of a row."""
    config = read_config(compose_config([f"model={model}", *words, f"batch.context_tokens={context_tokens}"]))
    return config, planned_setting(config)


def write(table: dict[str, Any], path: Path = TABLE) -> None:
    """Write a line a row, so that a change is easy to look at."""
    lines = [f' "models": {{\n{_lines(table["models"])}\n }}', f' "settings": {{\n{_lines(table["settings"])}\n }}']
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _lines(rows: dict[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(key)}: {json.dumps(rows[key], separators=(',', ':'))}" for key in sorted(rows))


def _written(found: Measured, name: str, fewest: int, most: int) -> tuple[Config, Config]:
    """Return the model's own facts as written under its name, and the row of a setting for a range of contexts."""
    content = found.facts.to_json()
    tokens = {"context_tokens": found.context_tokens, "fewest_tokens": fewest, "most_tokens": most}
    memory = {kind: list(content.pop(kind).values()) for kind in MEMORY}
    return content, {"model": name} | tokens | memory


def _model_of(rows: list[dict[str, Any]]) -> str:
    return rows[0]["model"].partition("@")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
