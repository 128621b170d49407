"""Whether a server keeps its memory under load: many clients for minutes, some of whom vanish or send nonsense.

    python benchmarks/questions/serve_load.py --minutes 10        # a process of `lmtrain serve` on a loopback port
    python benchmarks/questions/serve_load.py --minutes 60 --requests-per-second 3 --out load    # load.json, load.svg

Clients ask for chats and completions, streamed or not, with prefixes in common; one in five leaves mid-answer, one in
ten sends bytes that are no request. Every ten seconds the server's open files are counted, its threads, and its
memory: resident pages without those of files, which depend on other work on the machine. It fails where the
server dies, has no room for as many texts as at first afterwards, drops a connection, or answers a whole request with
other than 200 or 429. Clients keep idle connections for httpx's own 5 s.
"""

import argparse
import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from inference import llama_settings, save

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
SYSTEM = "You answer in one line, and you do not repeat the question. "
EVERY_SECONDS = 10.0
NUM_TEXTS = NUM_WAITING = 16
FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Load:
    """How long, by how many clients, and requests a second of them all; None: as fast as they are answered."""

    seconds: float
    num_clients: int
    requests_per_second: float | None = None

    async def pause(self, source: random.Random) -> None:
        """Wait for a client's next request."""
        if self.requests_per_second is not None:
            await asyncio.sleep(source.expovariate(self.requests_per_second / self.num_clients))


def main() -> None:
    """Print a line every ten seconds, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--requests-per-second", type=float, help="of all clients; left out, as fast as they come")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="name without ending of a file of figures and one of their curves")
    asked = parser.parse_args()
    asked_load = Load(
        seconds=asked.minutes * 60, num_clients=asked.clients, requests_per_second=asked.requests_per_second
    )
    with tempfile.TemporaryDirectory() as folder:
        model = save(Path(folder) / "model", llama_settings(width=asked.width, num_layers=asked.num_layers))
        (model / "chat_template.jinja").write_text(TEMPLATE)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "lmtrain.cli", "serve", str(model), "--port", str(port), "--device", "cpu"]
        server = subprocess.Popen([*command, "--num-texts", f"{NUM_TEXTS}", "--num-waiting", f"{NUM_WAITING}"])
        try:
            figures = asyncio.run(load(server, f"http://127.0.0.1:{port}", asked_load))
        finally:
            server.terminate()
            print(f"SIGTERM: exit code {server.wait(60)}")
    if asked.out is not None:
        asked.out.with_suffix(".json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
        draw(figures, asked.out.with_suffix(".svg"))
    raise SystemExit(1 if figures["answered"][FAILED] else 0)


async def load(server: "subprocess.Popen[bytes]", url: str, asked: Load) -> dict[str, Any]:
    """Ask for so many seconds; then everything must be free again."""
    answered: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        while True:
            try:
                await http.get("/health")
                break
            except httpx.ConnectError:
                await asyncio.sleep(0.2)
        ends = time.monotonic() + asked.seconds
        clients = [
            asyncio.create_task(ask(http, random.Random(n), ends, asked, answered)) for n in range(asked.num_clients)
        ]
        figures = await watch(server, ends)
        await asyncio.gather(*clients)
        await free(http)
    resident = figures["resident_mib"]
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(answered.items()))
    quarter = len(resident) // 4
    later = resident[quarter:]
    slope = statistics.linear_regression(range(len(later)), later).slope * 60 / EVERY_SECONDS
    print(f"{asked.seconds / 60:.0f} minutes, {asked.num_clients} clients: {told}")
    print(f"resident memory: {resident[0]:.0f} MiB at first, {resident[quarter]:.0f} after a quarter,", end=" ")
    print(f"{resident[-1]:.0f} at the end; {slope:+.3f} MiB a minute after the quarter")
    print(f"open files: {min(figures['open_files'])} to {max(figures['open_files'])},", end=" ")
    print(f"threads: {min(figures['threads'])} to {max(figures['threads'])}")
    return {"every_seconds": EVERY_SECONDS, **figures, "answered": answered}


async def ask(
    http: httpx.AsyncClient, source: random.Random, ends: float, asked: Load, answered: "Counter[str]"
) -> None:
    """Be one client, who asks again and again."""
    while time.monotonic() < ends:
        await asked.pause(source)
        try:
            await ask_once(http, source, answered)
        except httpx.TransportError as problem:
            print(f"{time.strftime('%H:%M:%S')} failed: {problem!r}", flush=True)
            answered[FAILED] += 1


async def ask_once(http: httpx.AsyncClient, source: random.Random, answered: "Counter[str]") -> None:
    """Ask for one text, or send nonsense."""
    body: dict[str, Any] = {"max_tokens": source.randrange(1, 60), "temperature": source.choice([0, 0.8, 1.3])}
    words = " ".join(str(source.randrange(1000)) for _ in range(source.randrange(1, 12)))
    address = "/v1/completions"
    if source.random() < 0.5:
        address = "/v1/chat/completions"
        body["messages"] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]
    else:
        body["prompt"] = SYSTEM + words
    if source.random() < 0.1:
        answer = await http.post(address, content=source.randbytes(200), headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text
        answered["refused"] += 1
    elif source.random() < 0.2:
        async with http.stream("POST", address, json={**body, "max_tokens": 100, "stream": True}) as answer:
            async for _ in answer.aiter_raw():
                break
        answered["left mid-answer"] += 1
    else:
        await read_whole(http, address, body, source, answered)


async def read_whole(
    http: httpx.AsyncClient, address: str, body: dict[str, Any], source: random.Random, answered: "Counter[str]"
) -> None:
    """Read an answer to its end, or wait where too many do."""
    answer = await http.post(address, json={**body, "stream": source.random() < 0.5})
    assert answer.status_code in (200, 429), answer.text
    if answer.status_code == 429:
        answered["told to try again"] += 1
        await asyncio.sleep(1)
    else:
        answered["answered"] += 1


async def watch(server: "subprocess.Popen[bytes]", ends: float) -> dict[str, list[float]]:
    """Return the server's own resident memory in MiB, open files and threads, every ten seconds."""
    figures: dict[str, list[float]] = {"resident_mib": [], "open_files": [], "threads": []}
    process = Path(f"/proc/{server.pid}")
    while time.monotonic() < ends:
        await asyncio.sleep(EVERY_SECONDS)
        assert server.poll() is None, "the server has ended"
        status = process.joinpath("status").read_text(encoding="ascii")
        kilobytes, threads = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("RssAnon", "Threads"))
        now = (kilobytes / 1024, len(list(process.joinpath("fd").iterdir())), threads)
        for name, value in zip(figures, now, strict=True):
            figures[name].append(value)
        print(f"{now[0]:.1f} MiB, {now[1]} files, {threads} threads", flush=True)
    return figures


async def free(http: httpx.AsyncClient) -> None:
    """See that there is room for as many texts as the server takes at once: nothing is held for clients who left."""
    await asyncio.sleep(5)
    body = {"prompt": SYSTEM, "max_tokens": 2}
    sent = [http.post("/v1/completions", json=body) for _ in range(NUM_TEXTS + NUM_WAITING)]
    statuses = {answer.status_code for answer in await asyncio.gather(*sent)}
    assert statuses == {200}, f"texts of clients who left are still held: {statuses}"


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw memory, open files, threads and tokens over time."""
    from matplotlib.figure import Figure

    minutes = [(index + 1) * figures["every_seconds"] / 60 for index in range(len(figures["resident_mib"]))]
    figure_ = Figure(figsize=(7, 5), layout="constrained")
    memory, held = figure_.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    memory.plot(minutes, figures["resident_mib"])
    memory.set(ylim=(0, None), ylabel="resident memory, MiB", title="lmtrain serve under load")
    held.plot(minutes, figures["open_files"], label="open files")
    held.plot(minutes, figures["threads"], label="threads")
    held.set(ylim=(0, None), xlabel="minutes")
    held.legend()
    figure_.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
