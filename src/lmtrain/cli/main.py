"""`lmtrain VERB ...`: find the verb, call it, turn a refusal into one message and its exit code."""

import atexit
import errno
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from lmtrain.child_process import protect_children
from lmtrain.cli.command_table import VERBS
from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_ENVIRONMENT, EXIT_INTERRUPTED, LMTRAIN_ERRORS
from lmtrain.json_output import json_alone

DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO})  # EFBIG: ulimit -f
LONGEST_LINE: Final = 4_000  # characters of a message


def main(words: Sequence[str] | None = None) -> int:
    """Serve `lmtrain VERB ...` and return the exit code."""
    verb, *rest = [*(sys.argv[1:] if words is None else words)] or ["--help"]
    if verb in ("-h", "--help", "help"):
        if not rest:
            print(usage())
            return EXIT_DONE
        verb, *rest = rest if rest[0] in VERBS else ["train", *rest]  # a verb, or a group, an option or a key
        rest = ["--help", *rest]
    if verb in ("--version", "-V", "version"):
        from importlib.metadata import version  # brings the e-mail package along: for this word alone

        print(f"lmtrain {version('lmtrain')}")
        return EXIT_DONE
    if verb not in VERBS:
        from lmtrain.run.compose.suggestions import unknown_command  # only to refuse

        _report(f"lmtrain {unknown_command(verb, rest, VERBS)}")
        return EXIT_CONFIGURATION
    return serve(verb, rest, program=f"lmtrain {verb}")


def serve(verb: str, words: Sequence[str], *, program: str) -> int:
    """Call one verb; a refusal becomes one message on stderr and its exit code, and no message holds a secret."""
    sys.excepthook = lambda *failure: _report("".join(traceback.format_exception(*failure)).rstrip())
    protect_children()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads it once; its notices stay off the console
    atexit.register(gc.freeze)  # no search for garbage at the interpreter's end: 0.05 of a plan's 0.95 s
    try:
        with json_alone("--json" in words):
            code = find_verb(verb)(list(words), program=program)
        if code == EXIT_INTERRUPTED:
            _ignore_interrupts()
        return code
    except LMTRAIN_ERRORS as error:
        _report(f"lmtrain: {error}")
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        where = f"{error.filename} cannot be written" if error.filename else "a file cannot be written"
        _report(f"lmtrain: {where}: {os.strerror(error.errno)}; free space, or use another folder.")
        return EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        _ignore_interrupts()
        print("lmtrain: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _ignore_interrupts() -> None:
    """Let a further Ctrl-C pass by: it would end the interpreter's own end, with another exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _report(message: str) -> None:
    # Only where something went wrong: --help is to answer at once.
    from lmtrain.report.visible_text import visible
    from lmtrain.tracking.redaction import redact_text

    print("\n".join(map(_bounded, visible(redact_text(message)).split("\n"))), file=sys.stderr)


def _bounded(line: str) -> str:
    """Leave the middle of a very long line out: a stranger's file may name a tensor with a megabyte."""
    left_out = len(line) - LONGEST_LINE
    half = LONGEST_LINE // 2
    return line if left_out <= 0 else f"{line[:half]} [{left_out:,} characters] {line[-half:]}"


def find_verb(verb: str) -> Callable[..., int]:
    """Import a verb's function."""
    module, _, function = VERBS[verb][0].partition(":")
    gc.disable()  # imports stay: looking for garbage in them costs a short command a tenth of its time
    try:
        return getattr(importlib.import_module(f"lmtrain.cli.commands.{module}"), function)
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
