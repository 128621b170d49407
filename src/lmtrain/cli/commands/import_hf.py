"""`lmtrain import hf|peft FOLDER OUT`: take a model of transformers, or an adapter of PEFT, to train on from."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_count, parse_quantity
from lmtrain.errors import EXIT_DONE
from lmtrain.run.compose.flag_parser import FlagParser

SHORT_CONTEXT: Final = 512  # tokens; real models take more
STEP_TOKENS: Final = 2048  # of a small run's step


def import_model(words: list[str], *, program: str = "lmtrain import") -> int:
    """Import a folder of save_pretrained, and print the command to train on from it."""
    arguments = _parser(program).parse_args(words)
    return _adapter(arguments) if arguments.format == "peft" else _model(arguments)


def _model(arguments: argparse.Namespace) -> int:
    from lmtrain.interop.folders import read_config_file, require_free

    require_free(arguments.out, name="OUT")
    read_config_file(arguments.folder)  # a wrong folder is refused before torch is imported
    from lmtrain.interop.hf_import import import_folder, open_hugging_face

    model = open_hugging_face(arguments.folder, with_tokenizer=not arguments.without_tokenizer)
    for key in model.description.unread_keys:
        print(f"config.json: {key} is not known here and not used", file=sys.stderr)
    import_folder(
        model, arguments.out, max_shard_bytes=int(parse_quantity(arguments.max_shard_bytes, "max_shard_bytes"))
    )
    context = context_words(model.description.settings["max_context_tokens"])
    command = shlex.join(["lmtrain", "train", f"init_from={arguments.out}", *context])
    if arguments.json:
        print(json.dumps({"folder": str(arguments.out), "parameters": model.num_parameters, "command": command}))
        return EXIT_DONE
    print(
        f"{arguments.out}: {model.description.model_type}, {model.num_parameters:,} parameters. To train on from it:\n"
    )
    print(f"  {command} source=files 'source.paths=[my/notes]' budget.tokens=...")
    return EXIT_DONE


def context_words(most: int) -> list[str]:
    """Return the words for training within a short context: the default may be beyond it, and divides its step."""
    if most > SHORT_CONTEXT:
        return []
    return [f"batch.context_tokens={most}", f"batch.tokens_per_step={most * max(1, STEP_TOKENS // most)}"]


def _adapter(arguments: argparse.Namespace) -> int:
    """Add an adapter's changes to its base."""
    from lmtrain.interop.folders import require_free
    from lmtrain.run.stored_runs.find_run import require_source

    require_free(arguments.out, name="OUT")
    require_source(arguments.base, key="--base")
    from lmtrain.interop.peft_adapters import import_merged, open_peft
    from lmtrain.run.stored_runs.exported_models import model_to_export

    num_modules = import_merged(model_to_export(arguments.base), open_peft(arguments.folder), arguments.out)
    command = shlex.join(["lmtrain", "train", f"init_from={arguments.out}"])
    if arguments.json:
        print(json.dumps({"folder": str(arguments.out), "modules": num_modules, "command": command}))
    else:
        print(f"{arguments.out}: {arguments.base} with the changes of {format_count(num_modules, 'module')}")
    return EXIT_DONE


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Take a model of other tools, to train on from.")
    formats = parser.add_subparsers(dest="format", required=True, metavar="hf|peft")
    hugging_face = formats.add_parser("hf", help="a folder that transformers' save_pretrained wrote")
    hugging_face.add_argument(
        "folder", type=Path, help="with config.json, model.safetensors (or shards), tokenizer.json"
    )
    hugging_face.add_argument("out", type=Path, help="a new folder")
    hugging_face.add_argument("--without-tokenizer", action="store_true", help="take the weights alone")
    hugging_face.add_argument("--max-shard-bytes", default="5GB", help="of one weights file at most (5GB)")
    peft = formats.add_parser("peft", help="an adapter that PEFT's save_pretrained wrote, merged into its base")
    peft.add_argument("folder", type=Path, help="with adapter_config.json and adapter_model.safetensors")
    peft.add_argument("out", type=Path, help="a new folder")
    peft.add_argument("--base", type=Path, required=True, help="runs/NAME, or what `import hf` made: the frozen model")
    peft.add_argument("--json", action="store_true", help="print one JSON object")
    hugging_face.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
