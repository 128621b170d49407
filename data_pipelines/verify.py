"""`lmtrain verify FOLDER ...`: read prepared data again, every byte of it; exit code 1 when something is wrong."""

import argparse
import json
import shlex
from pathlib import Path

from data_pipelines.progress import stage
from data_pipelines.stages.verify import num_bytes, problems
from lmtrain.errors import EXIT_NO, ConfigurationError
from lmtrain.storage import foreign_json


def verify(words: list[str], *, program: str = "lmtrain verify") -> int:
    """Print each problem on a line, or one line that all is well; the exit code is 1 where there are problems."""
    parser = argparse.ArgumentParser(
        prog=program, description="Read prepared data again and hold every byte against its manifest and tokenizer."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what lmtrain prepare printed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    for folder in arguments.folders:
        _refuse_run(folder, program)
    found = {str(folder): _problems_of(folder) for folder in arguments.folders}
    if arguments.json:
        answer = {folder: {"is_whole": not some, "problems": some} for folder, some in found.items()}
        print(json.dumps(answer))  # noqa: T201
    else:
        for folder, some in found.items():
            print("\n".join(some) or f"{folder} is whole")  # noqa: T201
    return EXIT_NO if any(found.values()) else 0


def _refuse_run(folder: Path, program: str) -> None:
    """Name the data of a run: its folder keeps their manifest alone."""
    if not (folder / "run.json").is_file():
        return
    try:
        data = foreign_json.read(folder / "run.json")["data"]
    except (OSError, ValueError, LookupError, TypeError):
        data = None
    where = f"the data it reads are `{program} {shlex.quote(data)}`" if isinstance(data, str) else "give its data"
    raise ConfigurationError(f"{folder} is a run, and no data folder; {where}.")


def _problems_of(folder: Path) -> list[str]:
    total_bytes = num_bytes(folder)
    with stage(f"verify {folder.name}", total_bytes=total_bytes) as progress:
        return list(problems(folder, advance=lambda read: progress.advance(text_bytes=read)))
