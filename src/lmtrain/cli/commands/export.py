"""`lmtrain export hf|gguf|peft SOURCE OUT`: write a trained model, or its adapter, in the format of other tools."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.commands.model_flags import add_json, add_weights
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.interop.folders import imported_facts, is_imported, require_free
from lmtrain.json_output import print_json
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.stored_runs.find_run import require_source


def export(words: list[str], *, program: str = "lmtrain export") -> int:
    """Export a run's newest checkpoint, a checkpoint, or an imported folder; refuse others before torch is imported."""
    asked = _parser(program).parse_args(words)
    require_free(asked.out, name="OUT")
    require_source(asked.source, key="SOURCE")
    facts, line = {"hf": _hugging_face, "gguf": _gguf, "peft": _peft}[asked.format](asked)
    print_json(facts) if asked.json else print(line)
    return EXIT_DONE


def require_flags(words: Sequence[str]) -> None:
    """Refuse wrong arguments of `lmtrain export`."""
    _parser("lmtrain export").parse_args([*words])


def _hugging_face(asked: argparse.Namespace) -> tuple[dict[str, Any], str]:
    config = _export_to(asked, asked.out)
    architecture, trust = config["architectures"][0], ", trust_remote_code=True" if "auto_map" in config else ""
    line = f"{asked.out}: {architecture}, for AutoModelForCausalLM.from_pretrained(...{trust})"
    return {"folder": str(asked.out), "architecture": architecture}, line


def _peft(asked: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Write a run's adapter alone, for PeftModel.from_pretrained over the exported base."""
    from lmtrain.interop.peft_adapters import export_peft
    from lmtrain.run.stored_runs.exported_models import adapted_model

    found = adapted_model(asked.source, weights=asked.weights, allowed=asked.allow_target)
    base = asked.base_model
    facts = imported_facts(Path(found.base)) if found.base and is_imported(Path(found.base)) else {}
    if base is None and facts:
        source = Path(facts["source"])  # a folder, or OWNER/NAME of the Hub
        is_name = len(source.parts) == 2 and not source.is_absolute()
        base = str(source.resolve()) if source.is_dir() else str(source) if is_name else None
    if base is None:
        raise ConfigurationError(
            "--base-model: must name the base as transformers loads it; write one by "
            f"`lmtrain export hf {found.base} FOLDER` and pass --base-model FOLDER."
        )
    modules = export_peft(
        found.model,
        found.adapter,
        settings=found.settings,
        out=asked.out,
        base=base,
        base_type=facts.get("model_type"),
    )
    where = format_count(len(modules), "module")
    line = f"{asked.out}: rank {found.adapter.rank} on {where} of {base}, for PeftModel.from_pretrained"
    return {"folder": str(asked.out), "rank": found.adapter.rank, "modules": modules}, line


def _gguf(asked: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Export into a hidden folder next to OUT, and write the file from there."""
    from lmtrain.interop.gguf_file import require_gguf, write_gguf

    require_gguf(asked.outtype)
    folder = asked.out.with_name(f".{asked.out.name}.hf")
    shutil.rmtree(folder, ignore_errors=True)  # of a killed export
    try:
        _export_to(asked, folder)
        note = write_gguf(folder, asked.out, output_type=asked.outtype, name=asked.source.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"file": str(asked.out), "note": note}, f"{asked.out}: for llama.cpp" + (f"\n  {note}" if note else "")


def _export_to(asked: argparse.Namespace, out: Path) -> dict[str, Any]:
    from lmtrain.interop.hf_export import DTYPES, export_config, export_folder
    from lmtrain.run.stored_runs.exported_models import model_to_export

    require_free(out, name="OUT")
    own_code = asked.format == "hf"
    model = model_to_export(asked.source, weights=asked.weights, allowed=asked.allow_target, own_code=own_code)
    config = export_config(model.settings, own_code=own_code)
    if asked.format == "gguf":
        from lmtrain.interop.gguf_file import require_computed_there

        require_computed_there(config)
    dtype = None if asked.dtype is None else DTYPES[asked.dtype]
    export_folder(model, out, dtype=dtype)
    return config


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Write a trained model for other tools.")
    formats = parser.add_subparsers(dest="format", required=True, metavar="hf|gguf|peft")
    hugging_face = formats.add_parser("hf", help="a folder for transformers, vLLM and lm-eval")
    gguf = formats.add_parser("gguf", help="one file for llama.cpp, with the package gguf")
    peft = formats.add_parser("peft", help="the adapter alone of a run with adapter=lora")
    for each, out in ((hugging_face, "a new folder"), (gguf, "a new file: NAME.gguf"), (peft, "a new folder")):
        each.add_argument("source", type=Path, help="runs/NAME, one of its checkpoints, or an imported folder")
        each.add_argument("out", type=Path, help=out)
        add_weights(each)
        add_json(each)
    for each in (hugging_face, gguf):
        each.add_argument("--dtype", choices=("fp32", "bf16"), help="of the weights (as they are)")
    peft.add_argument(
        "--base-model",
        help="the base's folder or name on the hub, noted for PEFT (the folder that the run's base was imported from)",
    )
    gguf.add_argument("--outtype", default="auto", help="of the GGUF file: f32, f16, bf16, q8_0 or auto (auto)")
    return parser
