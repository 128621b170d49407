"""`lmtrain chat`."""

import os
import pty
import select
import signal
import subprocess
import sys
from dataclasses import replace

from lmtrain.cli.commands.chat import command, converse
from tests import tiny
from tests.inference.test_chat import session
from tests.interop.hugging_face import saved


def typed(*lines):
    """Return what reads these lines, then the end."""
    waiting = iter(lines)

    def read(prompt):
        line = next(waiting, EOFError)
        if line in (EOFError, KeyboardInterrupt):
            raise line
        return line

    return read


def test_a_conversation_goes_on_after_mistakes(capsys, tmp_path):
    talk = session()
    lines = ("Hello", "", "/rset", "/system Be kind.", "/help")
    assert converse(talk, read=typed(*lines, KeyboardInterrupt, f"/save {tmp_path / 'talk.jsonl'}")) == 0
    shown = capsys.readouterr().out
    for words in ("Did you mean 'reset'?", "Ctrl-D leaves"):
        assert words in shown
    assert (tmp_path / "talk.jsonl").is_file()
    assert talk.system == "Be kind."
    assert len(talk.messages) == 2
    assert max(map(len, command(talk, "/help").splitlines())) < 80
    assert converse(talk, read=typed("/rset", "/exit"), is_script=True) == 2


def test_an_answer_cannot_command_the_terminal(capsys):
    talk = session()
    talk.sampling = replace(talk.sampling, temperature=0.0, logit_bias={0x1B: 1e6})  # a model of escapes alone
    assert converse(talk, read=typed("Hello")) == 0
    assert capsys.readouterr().out.strip() == 12 * "\N{REPLACEMENT CHARACTER}"
    assert talk.messages[1]["content"] == 12 * "\x1b"  # kept as it was written


def test_control_c_ends_the_answer_and_not_the_program(tmp_path):
    """In a terminal of its own, as over ssh: Ctrl-C in an answer that would take a thousand tokens, then Ctrl-D."""
    saved("llama", tmp_path, max_position_embeddings=4096)
    master, slave = pty.openpty()
    words = ["--num-new-tokens", "4000", "--device", "cpu", "--temperature", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lmtrain.cli", "chat", str(tmp_path), *words],
        stdin=slave, stdout=slave, stderr=slave, env={**tiny.environment(), "TERM": "xterm", "COLUMNS": "80"},
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        terminal = Terminal(master)
        terminal.wait_for(b"\n> ")
        os.write(master, b"Hello\n")
        terminal.wait_for(b"Hello\r\n")
        terminal.wait_for(b"", more=20)  # the answer has begun
        process.send_signal(signal.SIGINT)
        terminal.wait_for(b"(stopped)\r\n> ")
        os.write(master, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(master)


class Terminal:
    """What a program shows, read up to what is waited for."""

    def __init__(self, descriptor):
        self.descriptor, self.seen = descriptor, b""

    def wait_for(self, wanted, *, more=0):
        """Read on until something is shown after what was waited for before, and so many bytes after it."""
        while (at := self.seen.find(wanted)) < 0 or len(self.seen) < at + len(wanted) + more:
            assert select.select([self.descriptor], [], [], 60)[0], self.seen
            self.seen += os.read(self.descriptor, 4096)
        self.seen = self.seen[at + len(wanted) :]
