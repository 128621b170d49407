"""`lmtrain chat RUN`: a conversation in the terminal."""

import readline
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.commands.model_flags import (
    add_model,
    add_sampling,
    read_model,
    read_sampling,
    require_model,
)
from lmtrain.errors import EXIT_DONE, LMTRAIN_ERRORS, ConfigurationError, suggest
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser

if TYPE_CHECKING:
    from lmtrain.inference.chat import ChatSession

HELP: Final = """\
/system TEXT      set the system text; without TEXT: none
/reset            forget the conversation
/save FILE        append it to a file of JSON lines
/exit             leave, as Ctrl-D does
Lines between two lines of \"\"\" are one turn.
Ctrl-C ends an answer."""
BLOCK: Final = '"""'
COMMANDS: Final = ("help", "system", "reset", "save", "exit")


def chat(words: list[str], *, program: str = "lmtrain chat") -> int:
    """Converse until the person leaves."""
    parser = FlagParser(prog=program, description="Converse with a model in the terminal; /help there.")
    add_model(parser)
    parser.add_argument("--system", default="", help="the system text before the chat")
    add_sampling(parser, num_new_tokens=512)
    asked = parser.parse_args(words)
    require_model(asked)
    sampling = read_sampling(asked)
    loaded = read_model(asked)
    from lmtrain.inference.chat import ChatSession, plain_line

    session = ChatSession(
        loaded,
        sampling=sampling,
        num_new_tokens=asked.num_new_tokens,
        stops=tuple(asked.stop),
        seed=asked.seed,
        system=asked.system,
    )
    form = f"{session.format.name} chat format"
    print(f"{loaded.name}: context {loaded.model.max_context_tokens:,} tokens, {form}. /help lists commands.")
    if line := plain_line(loaded):
        print(line)
    return converse(session, read=_read_line, is_script=not sys.stdin.isatty())


def converse(session: "ChatSession", *, read: Callable[[str], str], is_script: bool = False) -> int:
    """Answer each input of `read` until it ends: a turn, or a command that begins with /.

    Returns the exit code: that of a script's first refused input, if there was one; a person has seen it.
    """
    code = EXIT_DONE
    while True:
        try:
            text = read_turn(read)
        except EOFError:
            print()
            return code
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D leaves)")
            continue
        if text.strip() == "/exit":
            return code
        try:
            if text.startswith("/"):
                print(command(session, text))
            elif text.strip():
                _answer(session, text)
        except LMTRAIN_ERRORS as problem:
            print(f"lmtrain: {problem}")
            if is_script:
                code = code or problem.exit_code


def read_turn(read: Callable[[str], str]) -> str:
    """Return one turn: a line, or the lines of a block."""
    line = read("> ")
    if line.strip() != BLOCK:
        return line
    lines: list[str] = []
    while (line := read("| ")).strip() != BLOCK:
        lines.append(line)
    return "\n".join(lines)


def command(session: "ChatSession", text: str) -> str:
    """Run a command and return its reply."""
    name, _, value = text[1:].partition(" ")
    value = value.strip()
    match name:
        case "help":
            return HELP
        case "system":
            session.system = value
            return "(system text set, from the next answer on)" if value else "(no system text)"
        case "reset":
            session.reset()
            return "(a new conversation)"
        case "save":
            if not value:
                raise ConfigurationError("/save needs a file, such as /save talk.jsonl.")
            session.save(Path(value))
            return f"(appended to {value})"
        case _:
            known = ", ".join(f"/{each}" for each in COMMANDS)
            raise ConfigurationError(f"/{name}: must be one of {known}.{suggest(name, COMMANDS)}")


def _answer(session: "ChatSession", text: str) -> None:
    """Print the answer as it comes, until it ends or the person stops it."""
    left_out = session.num_left_out
    begun = False
    with _interrupts() as interrupted:
        for part in session.answer(text, is_stopped=lambda: bool(interrupted)):
            shown = visible(part if begun else part.lstrip())
            begun = begun or bool(shown)
            print(shown, end="", flush=True)
    print(" (stopped)" if interrupted else "" if begun else "(the model ended its answer at once)")
    if session.num_left_out > left_out:
        print(f"(left out, as beyond the model's context: the first {format_count(session.num_left_out, 'turn')})")


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """Note Ctrl-C in a list instead of raising in the middle of a forward pass."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line(prompt: str) -> str:
    if sys.stdin.isatty():
        readline.set_auto_history(True)  # the arrow keys, and the lines typed before
    return input(prompt)
