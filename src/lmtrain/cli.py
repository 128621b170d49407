"""`lmtrain VERB ...`: find the verb, call it, turn a refusal into one message and its exit code."""

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import TracebackType

from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_INTERRUPTED, LMTRAIN_ERRORS, suggest

# verb -> the function that serves it, and the line that `lmtrain --help` prints; imported only when asked for
VERBS = {
    "train": ("lmtrain.verbs.train:train", "train a model, or one a value with -m"),
    "plan": ("lmtrain.verbs.plan:plan", "what a training config will need, take and cost; no GPU needed"),
    "doctor": (
        "lmtrain.verbs.doctor:doctor",
        "check this machine before a long run, and measure it",
    ),
    "bench": (
        "lmtrain.verbs.bench:bench",
        "time a step by part, name the bottleneck and what would help",
    ),
    "prepare": ("lmtrain.verbs.prepare:prepare", "turn text into tokenized shards"),
    "verify": ("data_pipelines.verify:verify", "hold every byte of prepared data against its manifest"),
    "tokenizer": (
        "lmtrain.verbs.tokenizer:make",
        "learn a tokenizer or take one, and compare it with others",
    ),
    "generate": ("lmtrain.verbs.generate:generate", "continue a text with a run's newest checkpoint"),
    "chat": ("lmtrain.verbs.chat:chat", "converse with a model in the terminal"),
    "serve": ("lmtrain.verbs.serve:serve", "serve a model: OpenAI's API, and a chat page"),
    "export": (
        "lmtrain.verbs.export:export",
        "give a model to transformers, vLLM or llama.cpp: hf, gguf",
    ),
    "import": ("lmtrain.verbs.import_hf:import_model", "take a model of transformers, to train on from: hf"),
    "ledger": ("lmtrain.verbs.ledger:ledger", "show where every second of a run went, also while it runs"),
    "report": ("lmtrain.verbs.report:report", "write a run as one HTML file, with curves"),
    "compare": (
        "lmtrain.verbs.compare:compare",
        "set runs side by side, with the noise of their seeds",
    ),
    "ui": ("lmtrain.verbs.ui:ui", "open MLflow on the runs of this project"),
    "sync": ("lmtrain.verbs.sync:sync", "send a run's metrics to MLflow, each point once"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Serve `lmtrain VERB ...` and return the exit code."""
    verb, *rest = [*(sys.argv[1:] if words is None else words)] or ["--help"]
    if verb in ("-h", "--help", "help"):
        print(usage())
        return 0
    if verb in ("--version", "-V", "version"):
        print(f"lmtrain {version('lmtrain')}")
        return 0
    if verb not in VERBS:
        print(f"lmtrain {verb}: there is no such command.{suggest(verb, VERBS)}\n\n{usage()}", file=sys.stderr)
        return EXIT_CONFIGURATION
    return serve(verb, rest, program=f"lmtrain {verb}")


def serve(verb: str, words: Sequence[str], *, program: str) -> int:
    """Call one verb; a refusal becomes one message on stderr and its exit code, and no message holds a secret."""
    sys.excepthook = _show_failure
    try:
        code = find_verb(verb)(list(words), program=program)
        if code == EXIT_INTERRUPTED:
            _ignore_interrupts()
        return code
    except LMTRAIN_ERRORS as error:
        _tell(f"lmtrain: {error}")
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except KeyboardInterrupt:
        _ignore_interrupts()
        print("lmtrain: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _ignore_interrupts() -> None:
    """Let a further Ctrl-C pass by: it would end the interpreter's own end, with another exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _show_failure(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    _tell("".join(traceback.format_exception(kind, error, frames)).rstrip())


def _tell(message: str) -> None:
    from lmtrain.tracking.redaction import redact_text  # only where something went wrong: --help is to answer at once

    print(redact_text(message), file=sys.stderr)


def find_verb(verb: str) -> Callable[..., int]:
    """Import the function that serves a verb."""
    module_name, _, function_name = VERBS[verb][0].partition(":")
    gc.disable()  # what is imported stays: looking for garbage in it costs a short command a tenth of its time
    try:
        return getattr(importlib.import_module(module_name), function_name)
    finally:
        gc.freeze()
        gc.enable()


def usage() -> str:
    """List the verbs with a line each."""
    lines = [f"  {verb:<10} {line}" for verb, (_, line) in VERBS.items()]
    last = [
        "`lmtrain VERB --help` says what a command takes.",
        "Exit codes: 0 done, 1 no, 2 configuration, 3 environment, 4 data,",
        "85 queue me again, 130 and 143 stopped.",
    ]
    return "\n".join(["lmtrain: every FLOP accounted for.", "", *lines, "", *last])


if __name__ == "__main__":
    sys.exit(main())
