"""`lmtrain push RUN OWNER/NAME`: a run's newest checkpoint, exported, to the Hugging Face Hub."""

import shutil
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.commands.model_flags import add_json, add_weights
from lmtrain.errors import EXIT_DONE
from lmtrain.json_output import print_json
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.stored_runs.find_run import find_job

LOCK: Final = "push.lock"


def push(words: list[str], *, program: str = "lmtrain push") -> int:
    """Send a run's exported model; the same command after a stop sends the rest."""
    asked = _parser(program).parse_args(words)
    find_job(asked.run, key="RUN")
    run = asked.run.parent.parent if asked.run.parent.name == "checkpoints" else asked.run
    from lmtrain.interop.hub_repository import require_repository, send_folder
    from lmtrain.run.stored_runs.exported_models import PUSH_FOLDER, make_push_folder
    from lmtrain.tracking.atomic_files import file_lock

    token = require_repository(asked.repository)
    (run / PUSH_FOLDER).mkdir(exist_ok=True)
    busy = f"{run} is being pushed by process HOLDER; wait for it."
    with file_lock(run / PUSH_FOLDER / LOCK, refusal=busy):
        folder = make_push_folder(asked.run, weights=asked.weights, allowed=asked.allow_target)
        sent = send_folder(folder, asked.repository, token=token, is_public=asked.public, message=run.name)
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        print_json({"repository": asked.repository, "files_sent": sent.num_sent, "bytes_sent": sent.num_bytes})
    else:
        files = f"{format_count(sent.num_sent, 'file')} sent ({sent.num_bytes:,} bytes)"
        print(f"{asked.repository}: {files}, {sent.num_there} there already")
    return EXIT_DONE


def _parser(program: str) -> FlagParser:
    parser = FlagParser(
        prog=program,
        description="Send a run's newest checkpoint to the Hugging Face Hub, with a manifest of hashes and no secret. "
        "The token is that of HF_TOKEN or `hf auth login`; files that the repository has are not sent again.",
    )
    add = parser.add_argument
    add("run", type=Path, help="runs/NAME, or one of its checkpoints")
    add("repository", metavar="OWNER/NAME", help="on the Hub; created if it does not exist")
    add("--public", action="store_true", help="make a new repository public (private)")
    add_weights(parser)
    add_json(parser)
    return parser
