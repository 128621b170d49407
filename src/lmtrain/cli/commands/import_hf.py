"""`lmtrain import hf|peft FOLDER OUT`: take a model of transformers, or an adapter of PEFT, to train on from."""

import argparse
import shlex
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.commands.model_flags import add_json
from lmtrain.errors import EXIT_DONE
from lmtrain.json_output import print_json
from lmtrain.run.compose.flag_parser import FlagParser

SHORT_CONTEXT: Final = 512  # tokens; real models take more
STEP_TOKENS: Final = 2048  # of a small run's step


def import_model(words: list[str], *, program: str = "lmtrain import") -> int:
    """Import a folder of save_pretrained, and print the command to train on from it."""
    parser = FlagParser(prog=program, description="Take a model of other tools, to train on from.")
    formats = parser.add_subparsers(dest="format", required=True, metavar="hf|peft")
    hugging_face = formats.add_parser("hf", help="a folder of transformers' save_pretrained, or OWNER/NAME on the Hub")
    hugging_face.add_argument("--without-tokenizer", action="store_true", help="take the weights alone")
    hugging_face.add_argument(
        "--as-is", action="store_true", help="any causal model, by its own class in transformers: slower"
    )
    peft = formats.add_parser("peft", help="an adapter written by PEFT, merged into its base")
    peft.add_argument("--base", type=Path, required=True, help="runs/NAME, or an imported folder: the frozen model")
    for each, content in ((hugging_face, "config.json, model.safetensors (or shards)"), (peft, "adapter_config.json")):
        each.add_argument("folder", type=Path, help=f"with {content}")
        each.add_argument("out", type=Path, help="a new folder")
        add_json(each)
    asked = parser.parse_args(words)
    return _adapter(asked) if asked.format == "peft" else _model(asked)


def _model(asked: argparse.Namespace) -> int:
    from lmtrain.interop.folders import find_folder, read_config_file, require_free

    require_free(asked.out, name="OUT")
    folder = find_folder(asked.folder)
    read_config_file(folder)  # a wrong folder is refused before torch is imported
    from lmtrain.interop.hf_import import import_as_is, import_folder, open_hugging_face

    source, with_tokenizer = (
        str(asked.folder if folder != asked.folder else folder.resolve()),
        not asked.without_tokenizer,
    )
    if asked.as_is:
        taken = import_as_is(folder, asked.out, source=source, with_tokenizer=with_tokenizer)
        kind, num_parameters, longest = taken.name, taken.shape().num_parameters, taken.max_context_tokens
    else:
        model = open_hugging_face(folder, with_tokenizer=with_tokenizer)
        import_folder(model, asked.out, source=source)
        kind, num_parameters = model.description.model_type, model.num_parameters
        longest = model.description.settings["max_context_tokens"]
    context: list[str] = []
    if longest <= SHORT_CONTEXT:  # the default may exceed it, and divides the step
        tokens_per_step = longest * max(1, STEP_TOKENS // longest)
        context = [f"batch.context_tokens={longest}", f"batch.tokens_per_step={tokens_per_step}"]
    command = shlex.join(["lmtrain", "train", f"init_from={asked.out}", *context])
    if asked.json:
        print_json({"folder": str(asked.out), "parameters": num_parameters, "command": command})
    else:
        what = f"{kind}, {num_parameters:,} parameters"
        print(f"{asked.out}: {what}. To train on from it:\n")
        print(f"  {command} source=files 'source.paths=[my/notes]' budget.tokens=...")
    return EXIT_DONE


def _adapter(asked: argparse.Namespace) -> int:
    """Add an adapter's changes to its base."""
    from lmtrain.interop.folders import require_free
    from lmtrain.run.stored_runs.find_run import require_source

    require_free(asked.out, name="OUT")
    require_source(asked.base, key="--base")
    from lmtrain.interop.peft_adapters import import_merged, open_peft
    from lmtrain.run.stored_runs.exported_models import model_to_export

    num_modules = import_merged(model_to_export(asked.base), open_peft(asked.folder), asked.out)
    command = shlex.join(["lmtrain", "train", f"init_from={asked.out}"])
    if asked.json:
        print_json({"folder": str(asked.out), "modules": num_modules, "command": command})
    else:
        print(f"{asked.out}: {asked.base} with the changes of {format_count(num_modules, 'module')}")
    return EXIT_DONE
