"""`lmtrain generate RUN`: continue a text, or a file of them, with a model on this machine."""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from lmtrain.cli.commands.model_flags import (
    add_json,
    add_model,
    add_sampling,
    read_model,
    read_sampling,
)
from lmtrain.errors import EXIT_DONE, ConfigurationError, DataError, EnvironmentProblem
from lmtrain.json_output import json_alone, print_json
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser

if TYPE_CHECKING:
    from lmtrain.inference.generation import Generation, Request
    from lmtrain.inference.loaded_model import LoadedModel


def generate(words: list[str], *, program: str = "lmtrain generate") -> int:
    """Print a prompt and the model's continuation, or answer a file of prompts."""
    parser = FlagParser(prog=program, description="Continue a text with a model on this machine.")
    add_model(parser)
    parser.add_argument("--prompt", default="", help="text to continue; - reads it from standard input")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="a table with a column prompt, such as JSON lines")
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --prompts: a new file of JSON lines")
    parser.add_argument("--past-the-end", action="store_true", help="after the end of a text write another one")
    add_sampling(parser, num_new_tokens=200)
    add_json(parser)
    asked = parser.parse_args(words)
    read_sampling(asked)  # a wrong setting is refused before torch's import
    if asked.prompts is not None:
        return _answer_file(asked)
    if asked.out is not None:
        raise ConfigurationError(f"--out {asked.out} needs --prompts FILE; add it, or leave --out out.")
    return _continue(asked, asked.prompt if asked.prompt != "-" else sys.stdin.read())


def _continue(asked: argparse.Namespace, text: str) -> int:
    """Print a prompt and its continuation as it comes, or one JSON object."""
    loaded = read_model(asked)
    request = _request(asked, loaded, text, index=0)
    if asked.json:
        (written,) = loaded.engine().write([request])
        print_json({"prompt": text, **_answer(written)})
        return EXIT_DONE
    shown = visible if sys.stdout.isatty() else str  # a file or pipe gets the text unchanged
    print(shown(text), end="", flush=True)
    has_slid = False
    for delta in loaded.engine().run([request]):
        print(shown(delta.text), end="", flush=True)
        has_slid = delta.generation.begins_at > 0
    print()
    if has_slid:
        context = loaded.model.max_context_tokens
        sys.stderr.write(f"lmtrain: the text outgrew the context; the model read its newest {context} tokens.\n")
    return EXIT_DONE


def _answer_file(asked: argparse.Namespace) -> int:
    """Write a line for each prompt as it is answered."""
    if asked.prompt:
        raise ConfigurationError("--prompt and --prompts are mutually exclusive; give one.")
    prompts = read_prompts(asked.prompts)
    try:
        out = asked.out.open("x", encoding="utf-8") if asked.out else nullcontext()
    except OSError as problem:
        raise EnvironmentProblem(f"--out: {asked.out} cannot be written ({problem.strerror}).") from problem
    with json_alone(is_json=True), out as file:
        loaded = read_model(asked)
        requests = [_request(asked, loaded, prompt, index=place) for place, prompt in enumerate(prompts)]
        for delta in loaded.engine().run(requests):
            if delta.finish_reason is not None:
                place = delta.generation.request.index
                print_json({"index": place, "prompt": prompts[place], **_answer(delta.generation)}, file)
    return EXIT_DONE


def read_prompts(path: Path) -> list[str]:
    """Return the `prompt` of each row of a table, such as JSON lines."""
    from lmtrain.data.named_files import read_named_rows
    from lmtrain.tokenizers.base import is_unicode

    prompts: list[str] = []
    for row_id, row in read_named_rows(path, ["prompt"], flag="--prompts"):
        if not isinstance(prompt := row.get("prompt"), str) or not is_unicode(prompt):
            raise DataError(f'--prompts: {row_id} must be an object like {{"prompt": "..."}}.')
        prompts.append(prompt)
    if not prompts:
        raise DataError(f'--prompts: {path} is empty; each line must be an object like {{"prompt": "..."}}.')
    return prompts


def _request(asked: argparse.Namespace, loaded: "LoadedModel", prompt: str, *, index: int) -> "Request":
    from lmtrain.inference.generation import Request

    return Request(
        prompt=loaded.encode(prompt),
        num_new_tokens=asked.num_new_tokens,
        sampling=read_sampling(asked),
        end_ids=frozenset() if asked.past_the_end else loaded.end_ids,
        stops=tuple(asked.stop),
        seed=asked.seed,
        index=index,
        slides=True,
    )


def _answer(generation: "Generation") -> dict[str, str | int | None]:
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "num_new_tokens": len(generation.new_tokens),
    }
