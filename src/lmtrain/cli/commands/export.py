"""`lmtrain export hf|gguf|peft SOURCE OUT`: give a trained model, or its adapter, to other tools."""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmtrain.accounting.machine.number_formats import FORMATS
from lmtrain.accounting.quantities import format_count, parse_quantity
from lmtrain.cli.commands.registration import add_registration, registration
from lmtrain.errors import EXIT_DONE
from lmtrain.interop.folders import require_free
from lmtrain.run.compose.arguments import ALLOW_TARGET, ALLOW_TARGET_OPTION
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.stored_runs.find_run import require_source


def export(words: list[str], *, program: str = "lmtrain export") -> int:
    """Export a run's newest checkpoint, a checkpoint, or an imported folder.

    Raises:
        ConfigurationError: The source is none of these, or OUT is taken: raised before torch's import.
    """
    arguments = _parser(program).parse_args(words)
    require_free(arguments.out, name="OUT")
    require_source(arguments.source, key="SOURCE")
    name = arguments.source.name
    registered = registration(arguments)
    if registered is not None:
        arguments.source = registered.checkpoint  # the version's own, also of a run under way
    forms = {"hf": _hugging_face, "gguf": _gguf, "peft": _peft}
    told, line = forms[arguments.format](arguments, name)
    if registered is not None:
        version = registered.register(arguments.out, form=arguments.format)
        told |= {"registered": {"name": version.name, "version": version.version, "source": version.source}}
        line += f"\n  registered in MLflow: {version.name}, version {version.version}"
    print(json.dumps(told) if arguments.json else line)
    return EXIT_DONE


def bytes_per_exported_value(words: Sequence[str]) -> int | None:
    """Return the bytes of a weight that `lmtrain export WORDS` would write, None: as they are."""
    dtype = getattr(_parser("lmtrain export").parse_args(list(words)), "dtype", None)
    return None if dtype is None else FORMATS[dtype].num_bytes


def _hugging_face(arguments: argparse.Namespace, name: str) -> tuple[dict[str, Any], str]:
    del name
    config = _export_to(arguments, arguments.out)
    architecture, trust = config["architectures"][0], ", trust_remote_code=True" if "auto_map" in config else ""
    line = f"{arguments.out}: {architecture}, for AutoModelForCausalLM.from_pretrained(...{trust})"
    return {"folder": str(arguments.out), "architecture": architecture}, line


def _peft(arguments: argparse.Namespace, name: str) -> tuple[dict[str, Any], str]:
    """Write a run's adapter alone, for PeftModel.from_pretrained over the exported base."""
    del name
    from lmtrain.interop.peft_adapters import export_peft
    from lmtrain.run.stored_runs.exported_models import adapted_model

    found = adapted_model(arguments.source, weights=arguments.weights, allowed=arguments.allow_target)
    base = arguments.base_model or found.base
    modules = export_peft(found.model, found.adapter, settings=found.settings, out=arguments.out, base=base)
    where = format_count(len(modules), "module")
    line = f"{arguments.out}: rank {found.adapter.rank} on {where}, for PeftModel.from_pretrained"
    return {"folder": str(arguments.out), "rank": found.adapter.rank, "modules": modules}, line


def _gguf(arguments: argparse.Namespace, name: str) -> tuple[dict[str, Any], str]:
    """Export beside OUT, write the file from there, and clear the folder away.

    Raises:
        EnvironmentProblem: The package gguf is missing.
    """
    from lmtrain.interop.gguf_file import require_gguf, write_gguf

    require_gguf(arguments.outtype)
    folder = arguments.out.with_name(f".{arguments.out.name}.hf")
    shutil.rmtree(folder, ignore_errors=True)  # of a killed export
    try:
        _export_to(arguments, folder)
        note = write_gguf(folder, arguments.out, output_type=arguments.outtype, name=name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    line = f"{arguments.out}: for llama.cpp" + (f"\n  {note}" if note else "")
    return {"file": str(arguments.out), "note": note}, line


def _export_to(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    from lmtrain.interop.hf_export import DTYPES, export_config, export_folder
    from lmtrain.run.stored_runs.exported_models import model_to_export

    require_free(out, name="OUT")
    own_code = arguments.format == "hf"
    model = model_to_export(
        arguments.source, weights=arguments.weights, allowed=arguments.allow_target, own_code=own_code
    )
    config = export_config(model.settings, own_code=own_code)
    if arguments.format == "gguf":
        from lmtrain.interop.gguf_file import require_computed_there

        require_computed_there(config)
    dtype = None if arguments.dtype is None else DTYPES[arguments.dtype]
    export_folder(
        model, out, dtype=dtype, max_shard_bytes=int(parse_quantity(arguments.max_shard_bytes, "max_shard_bytes"))
    )
    return config


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Give a trained model to other tools.")
    formats = parser.add_subparsers(dest="format", required=True, metavar="hf|gguf|peft")
    hugging_face = formats.add_parser("hf", help="a folder for transformers, vLLM and lm-eval")
    gguf = formats.add_parser("gguf", help="one file for llama.cpp, through its package gguf")
    peft = formats.add_parser("peft", help="the adapter alone of a run with adapter=lora")
    places = {hugging_face: "a new folder", gguf: "a new file: NAME.gguf", peft: "a new folder"}
    for parser_of_format, out in places.items():
        parser_of_format.add_argument(
            "source", type=Path, help="runs/NAME, one of its checkpoints, or what import made"
        )
        parser_of_format.add_argument("out", type=Path, help=out)
        parser_of_format.add_argument(
            "--weights", choices=("raw", "ema"), default="raw", help="of a run, or their moving average (raw)"
        )
        parser_of_format.add_argument(ALLOW_TARGET, **ALLOW_TARGET_OPTION)
        add_registration(parser_of_format)
        parser_of_format.add_argument("--json", action="store_true", help="print one JSON object")
    for whole in (hugging_face, gguf):
        whole.add_argument("--dtype", choices=("fp32", "bf16"), help="of the weights (as they are)")
        whole.add_argument("--max-shard-bytes", default="5GB", help="of one weights file at most (5GB)")
    peft.add_argument("--base-model", help="the base's folder or name on the hub, noted for PEFT (the run's init_from)")
    gguf.add_argument("--outtype", default="auto", help="of the GGUF file: f32, f16, bf16, q8_0 or auto (auto)")
    return parser
