"""`lmtrain generate RUN`: continue a text, or a file of them, with a model on this machine."""

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.cli.commands.model_flags import (
    add_model,
    add_sampling,
    read_model,
    read_sampling,
    read_writer,
)
from lmtrain.errors import ConfigurationError
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser

if TYPE_CHECKING:
    from lmtrain.inference.generation import Generation, Request
    from lmtrain.inference.loaded_model import LoadedModel


def generate(words: list[str], *, program: str = "lmtrain generate") -> int:
    """Print a prompt and the model's continuation, or answer a file of prompts."""
    parser = _parser(program)
    arguments, rest = parser.parse_known_args(words)
    if rest and not any(word.startswith("-") for word in rest):
        prompt = shlex.quote(" ".join(rest))
        raise ConfigurationError(f"{prompt} stands alone; write {program} {arguments.run} --prompt {prompt}.")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    read_sampling(arguments)  # a wrong setting is refused before torch's import
    if arguments.prompts is not None:
        return _question_file(arguments)
    if arguments.out is not None:
        raise ConfigurationError(f"--out {arguments.out} has no effect without --prompts FILE; leave it out.")
    text = arguments.prompt if arguments.prompt != "-" else sys.stdin.read()
    loaded = read_writer(arguments)
    request = _request(arguments, loaded, text, index=0)
    engine = loaded.engine()
    if arguments.json:
        (written,) = engine.write([request])
        print(json.dumps({"prompt": text, **_answer(written)}, ensure_ascii=False))
        return 0
    shown = visible if sys.stdout.isatty() else str  # a file or pipe gets the text as it is
    print(shown(text), end="", flush=True)
    has_slid = False
    for delta in engine.run([request]):
        print(shown(delta.text), end="", flush=True)
        has_slid = delta.generation.begins_at > 0
    print()
    if has_slid:
        context = loaded.model.max_context_tokens
        sys.stderr.write(f"lmtrain: the text outgrew the context; of it the newest {context} tokens were read.\n")
    return 0


def _question_file(arguments: argparse.Namespace) -> int:
    """Write a line for each prompt as it is answered; prompts answered in an earlier attempt are left alone."""
    from lmtrain.inference.prompt_file import WRITTEN_BY, open_answers, read_prompts, written_so_far

    if arguments.prompt:
        raise ConfigurationError("--prompt and --prompts are both given; nearest valid: one of them.")
    prompts = read_prompts(arguments.prompts)
    by = _written_by(arguments)
    answered = written_so_far(arguments.out, prompts, by=by) if arguments.out else set[int]()
    missing = [place for place in range(len(prompts)) if place not in answered]
    if answered:
        print(f"{len(answered)} of {len(prompts)} prompts are answered in {arguments.out}.", file=sys.stderr)
    if not missing:
        return 0
    out = open_answers(arguments.out) if arguments.out else os.fdopen(os.dup(1), "w", encoding="utf-8")
    with out:
        loaded = read_model(arguments)
        requests = [_request(arguments, loaded, prompts[place], index=place) for place in missing]
        for delta in loaded.engine().run(requests):
            if delta.finish_reason is not None:
                place = delta.generation.request.index
                line = {"index": place, "prompt": prompts[place], **_answer(delta.generation), WRITTEN_BY: by}
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
                out.flush()
    return 0


def _written_by(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the model and the settings of the answers; from here on `arguments` name this very checkpoint."""
    from lmtrain.inference.prompt_file import MODEL, SHA256
    from lmtrain.run.stored_runs.find_run import model_bytes

    read = model_bytes(arguments.run, key="RUN")
    arguments.run = read.path
    others = ("weights", "num_new_tokens", "stop", "seed", "past_the_end")
    settings = {name: getattr(arguments, name) for name in others} | asdict(read_sampling(arguments))
    del settings["logit_bias"]  # of the server alone
    return {MODEL: read.name, SHA256: read.sha256, **settings}


def _request(arguments: argparse.Namespace, loaded: "LoadedModel", prompt: str, *, index: int) -> "Request":
    from lmtrain.inference.generation import Request

    return Request(
        prompt=loaded.encode(prompt),
        num_new_tokens=arguments.num_new_tokens,
        sampling=read_sampling(arguments),
        end_ids=frozenset() if arguments.past_the_end else loaded.end_ids,
        stops=tuple(arguments.stop),
        seed=arguments.seed,
        index=index,
        slides=True,
    )


def _answer(generation: "Generation") -> dict[str, str | int | None]:
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "num_new_tokens": len(generation.new_tokens),
    }


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Continue a text with a model on this machine.")
    add_model(parser)
    parser.add_argument("--prompt", default="", help="text to continue; - reads it from standard input")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='JSON lines as {"prompt": "..."}, many at once')
    parser.add_argument("--out", type=Path, metavar="FILE", help="of --prompts: JSON lines; goes on where it ended")
    parser.add_argument("--num-new-tokens", type=int, default=200, help="tokens to write at most (200)")
    parser.add_argument("--past-the-end", action="store_true", help="go on after the end of a text with another one")
    add_sampling(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
