"""`lmtrain plan --web`: a page of sliders and plots over `lmtrain plan`.

The page has no formula: it writes a command line, and draws the answers of this process. Only this machine can ask, and
only with the settings of a plan.
"""

import hashlib
import json
import re
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

from lmtrain import report
from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.scaling_laws.compute_optimal import compute_optimum, trade_off
from lmtrain.cli.commands.fleet import fleet_of, read_terms
from lmtrain.cli.fleet_terms import FLEET, is_fleet
from lmtrain.errors import EXIT_DONE, EXIT_INTERRUPTED, LMTRAIN_ERRORS, ConfigurationError, suggest
from lmtrain.interop.folders import CONFIG, read_config_file
from lmtrain.run.compose.arguments import values_by_key
from lmtrain.run.compose.group_options import file_values
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.compose.start_options import class_words
from lmtrain.run.planning.plan import planned_runs
from lmtrain.tracking.atomic_files import write_bytes
from lmtrain.tracking.ports import PORTS_TRIED, require_port

HOST: Final = "127.0.0.1"
PORT: Final = 8770
FILES: Final = Path(report.__file__).parent / "web"
PAGE: Final = "/page.html"
FACTORS: Final = tuple(2 ** (exponent / 4) for exponent in range(-12, 13))  # from an eighth to eight times
GROUPS: Final = ("model", "precision", "optimizer", "strategy", "recompute")
# Settings of the page; none of them can write a file or name code.
SECTIONS: Final = (*GROUPS, "cluster", "batch", "budget", "fleet")
KEY: Final = re.compile(rf"({'|'.join(SECTIONS)})(\.[a-z][a-z_]*)?")
VALUE: Final = re.compile(r"[\w.\- +$]*")
PASTED: Final = Path(".cache/plan")  # of folders with a config.json each
MOST_PASTED_BYTES: Final = 2**20

Answer = dict[str, Any]


def serve(words: list[str], *, port: int | None, opened: Callable[[ThreadingHTTPServer], None] | None = None) -> int:
    """Serve the page until interrupted, starting from the plan of `words`; `opened` gets the server."""
    server = listen(None if port is None else require_port(port, least=0), settings_of(words))
    print(f"The plan is at http://{HOST}:{server.server_port} (end with Ctrl-C)", flush=True)
    if opened is not None:
        opened(server)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        server.server_close()
    return EXIT_DONE


def settings_of(words: list[str]) -> list[str]:
    """Return the settings at which the sliders start."""
    for word in words:
        require_known(word)
    return [one for word in words for one in _settings_of(word)]


def _settings_of(word: str) -> list[str]:
    """Return a cluster's settings that have a place on the page; any other word is one."""
    group, _, name = word.partition("=")
    if group != "cluster":
        return [word]
    known = sorted(path.stem for path in (conf_folder() / group).glob("*.yaml"))
    values = file_values(word) if name in known else {}
    if not values.get("device"):
        raise ConfigurationError(f"{word}: must be a cluster with a known device.{suggest(name, known)}")
    keys = ("device", "network_bytes_per_second", "device_network_bytes_per_second")
    return [f"cluster.{key}={values[key]}" for key in keys if values.get(key) is not None]


def require_known(word: str) -> None:
    """Refuse all words but settings of a plan."""
    key, equals, value = word.partition("=")
    if not equals or not KEY.fullmatch(key) or not VALUE.fullmatch(value):
        near = suggest(key.partition(".")[0], SECTIONS) if equals else ""
        raise ConfigurationError(f"{word}: the page has settings of {', '.join(SECTIONS)}, as KEY=VALUE.{near}")


def listen(port: int | None, start: list[str]) -> ThreadingHTTPServer:
    """Open the server: on the asked port, or on the first free one from 8770 on."""
    for tried in range(PORT, PORT + PORTS_TRIED) if port is None else [port]:
        try:
            return ThreadingHTTPServer((HOST, tried), handler(start))
        except OSError:
            continue
    raise ConfigurationError(f"--port={port} is taken on {HOST}; leave it out to have a free one found.")


def choices(start: list[str]) -> Answer:
    """Return the entries of the page's menus, and the settings at which its sliders start."""
    options = {group: sorted(path.stem for path in (conf_folder() / group).glob("*.yaml")) for group in GROUPS}
    return {"options": options, "devices": list(DEVICES), "start": [plain_amount(word) for word in start]}


def plain_amount(word: str) -> str:
    """Return a setting with its amount as a plain number, as sliders take it: 70B is 70000000000."""
    key, _, value = word.partition("=")
    try:
        ((name, number),) = read_terms([word]).items() if is_fleet([word]) else [("", parse_quantity(value, key))]
    except ConfigurationError:
        return word
    return f"{f'{FLEET}{name}' if name else key}={number}" if isinstance(number, int | float) else word


def answer(words: list[str]) -> Answer:
    """Return the output of `lmtrain plan WORDS --json`, the numbers of the charts, and both commands; or an error."""
    command = shlex.join(["lmtrain", "plan", *words])
    try:
        for word in words:
            require_known(word)
        words = with_pasted(words)
        command = shlex.join(["lmtrain", "plan", *words])
        if is_fleet(words):
            fleet = fleet_of(words)
            spent = trade_offs(fleet.flops, num_parameters=fleet.num_active_parameters, tokens=fleet.run.tokens or 0)
            return {"command": command, "fleet": fleet.to_json(), "charts": {"trade_off": spent}}
        (run,) = planned_runs(words)
    except LMTRAIN_ERRORS as refusal:
        return {"command": command, "error": str(refusal)}
    shape, end = run.plan.shape, run.plan.horizon
    spent = trade_offs(end.flops, num_parameters=shape.num_active_parameters, tokens=end.tokens)
    train = shlex.join(["lmtrain", "train", *words])
    return {"command": command, "train": train, "plan": run.to_json(), "charts": {"trade_off": spent}}


def paste(text: bytes) -> Answer:
    """Keep a config.json of transformers in a folder; return the entry of the menu of models that names it."""
    folder = PASTED / f"pasted_{hashlib.sha256(text).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / CONFIG, text)
        read_config_file(folder)
    except LMTRAIN_ERRORS as refusal:
        return {"error": str(refusal)}
    return {"model": folder.name}


def with_pasted(words: list[str]) -> list[str]:
    """Return the words of a plan in which a pasted model is the folder of its config.json."""
    folder = PASTED / values_by_key(words).get("model", "")
    if not folder.name.startswith("pasted_") or not folder.is_dir():
        return words
    others = [word for word in words if word.partition("=")[0] != "model"]
    return [*class_words(str(folder), values_by_key(others)), *others]


def trade_offs(flops: float, *, num_parameters: float, tokens: float) -> Answer:
    """Return the loss of other sizes with the FLOPs of a run, and the places of the run and the optimum."""
    best = dict(zip(("num_parameters", "tokens"), compute_optimum(flops), strict=True))
    sizes = trade_off(flops, factors=FACTORS)
    return {
        "curve": [{"num_parameters": each.num_parameters, "loss": each.predicted_loss} for each in sizes],
        "optimum": best,
        "run": {"num_parameters": num_parameters, "tokens": tokens},
    }


class _Page(SimpleHTTPRequestHandler):
    @override
    def handle_one_request(self) -> None:
        with suppress(ConnectionError):  # the page was closed before it had its answer
            super().handle_one_request()

    @override
    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a slider asks often."""

    def do_POST(self) -> None:
        """Take a config.json; only a page of this server may send JSON (other sites' browsers ask first)."""
        size = self.headers.get("Content-Length", "")
        if self.headers.get("Content-Type") != "application/json" or self.path != "/config":
            self.send_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        elif not size.isdecimal() or int(size) > MOST_PASTED_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self.send_json(paste(self.rfile.read(int(size))))

    def send_json(self, content: Mapping[str, Any]) -> None:
        written = json.dumps(content).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)


def handler(start: list[str]) -> Callable[..., SimpleHTTPRequestHandler]:
    """Return the request handler: the files of the page, two questions, and a config.json."""
    one_at_a_time = threading.Lock()  # composing keeps global state

    class Handler(_Page):
        @override
        def parse_request(self) -> bool:
            """Refuse another host name: another site's page could ask through its own name for this address."""
            port = cast("ThreadingHTTPServer", self.server).server_port
            is_read = super().parse_request()
            if is_read and self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                self.send_error(HTTPStatus.FORBIDDEN)
                return False
            return is_read

        @override
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if asked.path == "/choices":
                self.send_json(choices(start))
            elif asked.path == "/plan":
                with one_at_a_time:
                    found = answer(parse_qs(asked.query).get("word", []))
                self.send_json(found)
            else:
                self.path = PAGE if asked.path == "/" else self.path
                super().do_GET()

    return partial(Handler, directory=str(FILES))
