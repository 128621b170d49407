"""Whether a server keeps its memory under load: many clients for minutes, some of whom vanish or send nonsense.

    python benchmarks/questions/serve_load.py --minutes 10        # a process of `lmtrain serve` on a loopback port

Clients ask for chats and completions, streamed or not, with prefixes in common; one in five leaves mid-answer, one in
ten sends bytes that are no request. Every ten seconds the server's resident memory is read, and its figures. It fails
where the server dies, does not free the cache afterwards, or answers a whole request with other than 200 or 429.
"""

import argparse
import asyncio
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from inference import llama_settings, save

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
SYSTEM = "You answer in one line, and you do not repeat the question. "
EVERY_SECONDS = 10.0


def main() -> None:
    """Print a line every ten seconds, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save(Path(folder) / "model", llama_settings(width=asked.width, num_layers=asked.num_layers))
        (model / "chat_template.jinja").write_text(TEMPLATE)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "lmtrain.cli", "serve", str(model), "--port", str(port), "--device", "cpu"]
        server = subprocess.Popen([*command, "--num-texts", "16", "--num-waiting", "16", "--cache-tokens", "4096"])
        try:
            asyncio.run(load(server, f"http://127.0.0.1:{port}", asked.minutes * 60, asked.clients))
        finally:
            server.terminate()
            print(f"SIGTERM: exit code {server.wait(60)}")


async def load(server: "subprocess.Popen[bytes]", url: str, seconds: float, num_clients: int) -> None:
    """Ask for so many seconds; then everything must be free again."""
    answered: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        while True:
            try:
                await http.get("/health")
                break
            except httpx.ConnectError:
                await asyncio.sleep(0.2)
        ends = time.monotonic() + seconds
        clients = [asyncio.create_task(ask(http, random.Random(n), ends, answered)) for n in range(num_clients)]
        resident = await watch(server, http, ends)
        await asyncio.gather(*clients)
        await free(http)
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(answered.items()))
    quarter = len(resident) // 4
    later = resident[quarter:]
    slope = statistics.linear_regression(range(len(later)), later).slope * 60 / EVERY_SECONDS
    print(f"{seconds / 60:.0f} minutes, {num_clients} clients: {told}")
    print(f"resident memory: {resident[0]:.0f} MiB at first, {resident[quarter]:.0f} after a quarter,", end=" ")
    print(f"{resident[-1]:.0f} at the end; {slope:+.2f} MiB a minute after the quarter")


async def ask(http: httpx.AsyncClient, source: random.Random, ends: float, answered: "Counter[str]") -> None:
    """Be one client, who asks again and again."""
    while time.monotonic() < ends:
        body: dict[str, Any] = {"max_tokens": source.randrange(1, 60), "temperature": source.choice([0, 0.8, 1.3])}
        words = " ".join(str(source.randrange(1000)) for _ in range(source.randrange(1, 12)))
        address = "/v1/completions"
        if source.random() < 0.5:
            address = "/v1/chat/completions"
            body["messages"] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]
        else:
            body["prompt"] = SYSTEM + words
        if source.random() < 0.1:
            answer = await http.post(
                address, content=source.randbytes(200), headers={"Content-Type": "application/json"}
            )
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


async def watch(server: "subprocess.Popen[bytes]", http: httpx.AsyncClient, ends: float) -> list[float]:
    """Return the resident memory in MiB, every ten seconds."""
    resident: list[float] = []
    while time.monotonic() < ends:
        await asyncio.sleep(EVERY_SECONDS)
        assert server.poll() is None, "the server has ended"
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
        resident.append(int(kilobytes) / 1024)
        page = (await http.get("/metrics")).text
        figures = {name: figure(page, name) for name in ("texts_running", "texts_waiting", "cache_share")}
        told = ", ".join(f"{name} {value:g}" for name, value in figures.items())
        print(f"{resident[-1]:.1f} MiB, {told}, {figure(page, 'new_tokens_total'):,.0f} tokens", flush=True)
    return resident


async def free(http: httpx.AsyncClient) -> None:
    """Wait until nothing is written, and see that nothing is held."""
    page = (await http.get("/metrics")).text
    while figure(page, "texts_running") + figure(page, "texts_waiting") > 0:
        await asyncio.sleep(0.1)
        page = (await http.get("/metrics")).text
    assert figure(page, "cache_share") == 0, "blocks are held by nobody's text"


def figure(page: str, name: str) -> float:
    """Return one of the server's figures."""
    return float(re.findall(rf"^lmtrain_{name} (\S+)$", page, re.MULTILINE)[0])


if __name__ == "__main__":
    main()
