"""`lmtrain chat RUN`: a conversation in the terminal."""

import readline
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.commands.model_flags import (
    add_model,
    add_sampling,
    read_sampling,
    read_writer,
    require_model,
)
from lmtrain.errors import EXIT_DONE, LMTRAIN_ERRORS, ConfigurationError, suggest
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser

if TYPE_CHECKING:
    from lmtrain.inference.chat import ChatSession
    from lmtrain.inference.tools import Tool

HELP = """\
/system TEXT      what the model is told first; without TEXT: nothing
/temperature X    0 always takes the likeliest token
/reset            forget the conversation
/save FILE        append it to a file of JSON lines
/exit             as does Ctrl-D
A line that ends with \\ goes on; so does everything between two lines of \"\"\".
Ctrl-C ends an answer."""
BLOCK = '"""'


def chat(words: list[str], *, program: str = "lmtrain chat") -> int:
    """Converse until the person leaves."""
    arguments = _parser(program).parse_args(words)
    require_model(arguments)
    sampling = read_sampling(arguments)
    tools = _read_tools(arguments.tool)
    loaded = read_writer(arguments)
    from lmtrain.inference.chat import ChatSession, plain_line

    session = ChatSession(
        loaded,
        sampling=sampling,
        num_new_tokens=arguments.num_new_tokens,
        stops=tuple(arguments.stop),
        seed=arguments.seed,
        system=arguments.system,
        tools=tools,
    )
    if arguments.tool and session.tools is None:
        raise ConfigurationError(
            f"--tool {arguments.tool[0]}: the {session.format.name} chat format has no calls; leave it out."
        )
    context = loaded.model.max_context_tokens
    print(f"{loaded.name}: context {context:,} tokens, {session.format.name} chat format. /help lists commands.")
    if line := plain_line(loaded):
        print(line)
    if session.tools is None:
        print(f"Without tools: the {session.format.name} chat format has no calls known here.")
    return converse(session, read=_read_line, is_script=not sys.stdin.isatty())


def _read_tools(specs: list[str]) -> "dict[str, Tool]":
    """Return the calculator, and the person's functions for the model."""
    from lmtrain.inference.tools import calculator, load_function

    return {calculator.__name__: calculator, **dict(map(load_function, specs))}


def converse(session: "ChatSession", *, read: Callable[[str], str], is_script: bool = False) -> int:
    """Answer each input of `read` until it ends: a turn, or a command beginning with /.

    Returns the exit code: of a script's first refused input, where there is one; a person has seen it.
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
        if text.strip() in ("/exit", "/quit"):
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
    """Return one turn: a line, lines continued by a backslash, or the lines of a block."""
    line = read("> ")
    lines: list[str] = []
    if line.strip() == BLOCK:
        while (line := read("| ")).strip() != BLOCK:
            lines.append(line)
        return "\n".join(lines)
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = read("| ")
    return "\n".join([*lines, line])


def command(session: "ChatSession", text: str) -> str:
    """Run a command and return its reply to the person.

    Raises:
        ConfigurationError: There is no such command, or its value cannot be.
    """
    name, _, value = text[1:].partition(" ")
    value = value.strip()
    commands: dict[str, Callable[[], str]] = {
        "help": lambda: HELP,
        "system": lambda: _tell_system(session, value),
        "temperature": lambda: _set_temperature(session, value),
        "reset": lambda: _reset(session),
        "save": lambda: _save(session, value),
    }
    if name not in commands:
        known = ", ".join(f"/{each}" for each in (*commands, "exit"))
        raise ConfigurationError(f"/{name} is no command; valid: {known}.{suggest(name, [*commands, 'exit'])}")
    return commands[name]()


def _tell_system(session: "ChatSession", text: str) -> str:
    session.system = text
    return "(the model is told this first, from the next answer on)" if text else "(the model is told nothing first)"


def _set_temperature(session: "ChatSession", value: str) -> str:
    try:
        session.set_temperature(float(value))
    except ValueError as problem:
        if isinstance(problem, ConfigurationError):
            raise
        raise ConfigurationError(f"/temperature {value} is no number; nearest valid: 0.8.") from problem
    return f"(temperature {session.sampling.temperature:g})"


def _reset(session: "ChatSession") -> str:
    session.reset()
    return "(a new conversation)"


def _save(session: "ChatSession", path: str) -> str:
    if not path:
        raise ConfigurationError("/save needs the name of a file: /save talk.jsonl.")
    session.save(Path(path))
    return f"(appended to {path})"


def _answer(session: "ChatSession", text: str) -> None:
    """Print the answer as it comes, until it is there or the person stops it."""
    left_out = session.num_left_out
    begun = False
    with _interrupts() as interrupted:
        for delta in session.answer(text, is_stopped=lambda: bool(interrupted)):
            shown = visible(delta.text if begun else delta.text.lstrip())
            begun = begun or bool(shown)
            print(shown, end="", flush=True)
            for used in delta.results:
                print(visible(f"({used.call.as_json()} -> {used.result})"), flush=True)
    print(" (stopped)" if interrupted else "" if begun else "(the model ended its answer at once)")
    if session.num_left_out > left_out:
        print(f"(left out, as beyond the model's context: the first {format_count(session.num_left_out, 'turn')})")


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """Note Ctrl-C in a list instead of raising in the middle of a forward pass."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line(prompt: str) -> str:
    if sys.stdin.isatty():
        readline.set_auto_history(True)  # the arrow keys, and the lines typed before
    return input(prompt)


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Converse with a model in the terminal; /help there.")
    add_model(parser)
    parser.add_argument("--system", default="", help="the system text before the chat")
    parser.add_argument("--num-new-tokens", type=int, default=512, help="tokens of an answer at most (512)")
    parser.add_argument(
        "--tool",
        action="append",
        default=[],
        metavar="FILE.py:FUNCTION",
        help="a Python function that the model may call, beside the calculator; may be given again",
    )
    add_sampling(parser)
    return parser
