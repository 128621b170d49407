"""What lets train.py start from an imported folder: a model option and an experiment, found by `--config-dir`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtrain.tokenizers.base import Tokenizer

OPTION = "imported"


def write_training_files(
    folder: Path, final: Path, *, settings: Mapping[str, Any], tokenizer: Tokenizer | None, source: str
) -> None:
    """Write model/imported.yaml and experiment/imported.yaml into a folder that will be named `final`."""
    for group in ("model", "experiment"):
        (folder / group).mkdir()
    lines = [f"# {source}, as `lmtrain import` took it", *_yaml(settings), "attention: ${attention}"]
    (folder / "model" / f"{OPTION}.yaml").write_text("\n".join(lines) + "\n")
    (folder / "experiment" / f"{OPTION}.yaml").write_text(
        "\n".join(_experiment(final.absolute(), tokenizer, source)) + "\n"
    )


def training_command(out: Path) -> str:
    """Return the command that trains on from an imported folder."""
    return f"python train.py init_from={out}"


def _experiment(final: Path, tokenizer: Tokenizer | None, source: str) -> list[str]:
    lines = [
        "# @package _global_",
        f"# Train on from {source}: gently, so that what it knows is not lost in the first steps",
        "defaults:",
        f"  - override /model: {OPTION}",
        "  - override /optimizer: adamw",
    ]
    if tokenizer is not None:
        lines.append("  - override /tokenizer: folder")
    lines += [f"init_from: {json.dumps(str(final))}", "gradient_clip_norm: 1.0", "optimizer:", "  lr: 2.0e-5"]
    if tokenizer is not None:
        lines += ["tokenizer:", f"  path: {json.dumps(str(final / 'tokenizer'))}"]
        lines += [f"  vocab_size: {tokenizer.vocab_size}"]
    return lines


def _yaml(node: Mapping[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in node.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return json.dumps(value)
