"""`lmtrain serve RUN`: OpenAI's API and a chat page over a model of this machine."""

import secrets
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from lmtrain.cli.commands.model_flags import add_model, read_model, require_model
from lmtrain.errors import EXIT_DONE, EXIT_ENVIRONMENT, EXIT_TERMINATED, ConfigurationError
from lmtrain.missing_package import require_package
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.ports import in_web_address, is_loopback, require_free

PREFILL_TOKENS: Final = 512  # of prompts, read in one pass while others write on
DRAIN_SECONDS: Final = 30  # for answers that have begun when the server is to end


def serve(words: list[str], *, program: str = "lmtrain serve") -> int:
    """Serve until SIGTERM or Ctrl-C, then finish the answers that have begun; return 0 for both."""
    asked = _parser(program).parse_args(words)
    require_package("lmtrain serve", "starlette", "uvicorn", extra="serve")
    key = read_key(asked.api_key_file, host=asked.host)
    require_model(asked)
    require_free(asked.host, asked.port)
    signal.signal(signal.SIGTERM, _terminate)
    loaded = read_model(asked)
    from lmtrain.inference.chat import plain_line
    from lmtrain.inference.engine import EngineLimits
    from lmtrain.serving.app import ServerSettings, build_app
    from lmtrain.serving.engine_thread import EngineWorker
    from lmtrain.serving.http_server import http_server

    limits = EngineLimits(num_texts=asked.num_texts, prefill_tokens=PREFILL_TOKENS)
    worker = EngineWorker(loaded.engine(limits), num_waiting=asked.num_waiting)
    settings = ServerSettings(api_key=key, host=asked.host)
    print(
        f"{loaded.name} is at http://{in_web_address(asked.host)}:{asked.port}/ and /v1 (end with Ctrl-C)", flush=True
    )
    if line := plain_line(loaded):
        print(line, flush=True)
    app = build_app(loaded, worker, settings)
    server = http_server(app, host=asked.host, port=asked.port, drain_seconds=DRAIN_SECONDS)
    try:
        with suppress(KeyboardInterrupt, SystemExit):  # uvicorn raises a signal again once it has drained
            server.run()
    finally:
        worker.stop()
    return EXIT_DONE if server.started else EXIT_ENVIRONMENT  # uvicorn has printed the cause


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(EXIT_TERMINATED)


def read_key(file: Path | None, *, host: str) -> str | None:
    """Return the key required in requests; None for a server reachable from this machine only."""
    if file is None:
        if is_loopback(host):
            return None
        raise ConfigurationError(
            f"--host {host}: other machines reach it, so it needs a key; write one, such as "
            f"{secrets.token_urlsafe(24)}, into a file and give --api-key-file FILE."
        )
    key = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    if len(key) < 16:
        raise ConfigurationError(f"--api-key-file {file} must hold a key of 16 characters or more.")
    return key


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=program, description="Serve a model: OpenAI's API, and a chat page.")
    add_model(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address; needs a key unless it is this machine's alone (127.0.0.1)")
    add("--port", type=int, default=8000, help="(8000)")
    add("--api-key-file", type=Path, metavar="FILE", help="one line: the key that requests must carry")
    add("--num-texts", type=int, default=16, help="texts written at once (16)")
    add("--num-waiting", type=int, default=64, help="texts in the queue; further requests get 429 (64)")
    return parser
