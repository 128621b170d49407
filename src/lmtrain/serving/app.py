"""OpenAI's API over a model, as a Starlette application, and a chat page.

Keys, refusals, and the way of answers; the page's files are sent under a policy against any other script.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.inference.chat import chat_format
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.serving.body import Asked, parse, read_chat, read_completion
from lmtrain.serving.engine_thread import EngineFailed, EngineWorker, Exchange, QueueFull
from lmtrain.serving.metrics import ServerMetrics
from lmtrain.serving.openai_answers import Writing, error

P = ParamSpec("P")
T = TypeVar("T")
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
NUM_READERS = 4  # threads that stay: those of starlette come and go, each with new memory
KEPT_WORDS = 1_000  # of each reader: the 10,000 of tokenizers grow to 260 MB where texts of 200 characters are not cut
HERE = {"localhost", "127.0.0.1", "::1"}


@final
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Who may ask, how much at once, and how long a body may take; `api_key` None admits everybody on this machine."""

    api_key: str | None = None
    max_body_bytes: int = 1 << 20
    body_seconds: float = 60.0
    host: str = "127.0.0.1"


def build_app(loaded: LoadedModel, worker: EngineWorker, settings: ServerSettings) -> Starlette:
    """Return the application; `worker` writes with `loaded`."""
    service = Service(loaded, worker, settings)
    routes = [
        Route("/health", service.health),
        Route("/metrics", service.guarded(service.measure)),
        Route("/v1/models", service.guarded(service.models)),
        Route("/v1/models/{name:path}", service.guarded(service.model)),
        Route("/v1/chat/completions", service.guarded(service.chat), methods=["POST"]),
        Route("/v1/completions", service.guarded(service.complete), methods=["POST"]),
        Route("/v1/embeddings", service.guarded(_no_embeddings), methods=["POST"]),
        *page_routes(),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refuse})


@final
class Service:
    """The handlers of the addresses."""

    def __init__(self, loaded: LoadedModel, worker: EngineWorker, settings: ServerSettings) -> None:
        self._loaded, self._worker, self._settings = loaded, worker, settings
        self._format, self._metrics = chat_format(loaded), ServerMetrics()
        self._pieces = loaded.tokenizer.bytes_of_ids()
        loaded.tokenizer.keep_words(KEPT_WORDS)
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="reader")

    async def health(self, request: Request) -> Response:
        """Answer 200 while the engine works."""
        del request
        is_well = self._worker.failure is None
        return JSONResponse({"status": "ok" if is_well else "failed"}, 200 if is_well else 503)

    async def measure(self, request: Request) -> Response:
        """Answer Prometheus."""
        del request
        gauges = {
            "texts_waiting": ("Texts that wait for their turn", self._worker.num_queued),
            "texts_running": ("Texts that are written: the batch", self._worker.num_running),
            "cache_share": ("Share of the cache that texts use", self._worker.cache_share),
        }
        return PlainTextResponse(self._metrics.page(gauges), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """Answer with a list of the one model."""
        del request
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Answer with the model of a name."""
        self._require_name(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        context = self._loaded.model.max_context_tokens
        model = {"id": self._loaded.name, "object": "model", "created": 0, "owned_by": "lmtrain"}
        return {**model, "max_model_len": context, "chat_format": self._format.name}

    def _require_name(self, name: str) -> None:
        if name != self._loaded.name:
            raise HTTPException(404, f"model: must be {self._loaded.name}, got {name[:80]}.")

    async def chat(self, request: Request) -> Response:
        """Go on with a conversation."""
        body, client = await self._body(request), self._client(request)
        return await self._answer(request, await self._read(read_chat, body, self._loaded, self._format, client=client))

    async def complete(self, request: Request) -> Response:
        """Go on with a text."""
        body, client = await self._body(request), self._client(request)
        return await self._answer(request, await self._read(read_completion, body, self._loaded, client=client))

    def guarded(self, serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Let a handler answer allowed clients, and turn errors into one clear answer."""

        async def answer(request: Request) -> Response:
            try:
                self._require_allowed(request)
                response = await serve(request)
            except HTTPException as problem:
                response = await _refuse(request, problem)
            except LMTRAIN_ERRORS as problem:
                response = JSONResponse(error(str(problem)), 400)
            except QueueFull as problem:
                response = JSONResponse(error(str(problem), kind=KINDS[429]), 429, headers={"Retry-After": "1"})
            except EngineFailed as problem:
                response = JSONResponse(error(str(problem), kind="server_error"), 503)
            except ClientDisconnect:
                response = Response(status_code=499)
            self._metrics.requests[response.status_code] += 1
            return response

        return answer

    def _require_allowed(self, request: Request) -> None:
        """Refuse a wrong key; without keys, refuse requests from web pages elsewhere."""
        key = self._settings.api_key
        if key is None:
            name = _host(request.headers.get("host", ""))
            if name not in HERE | {_host(self._settings.host)}:
                raise HTTPException(403, f"host: must be this machine without an API key, got {name}.")
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise HTTPException(401, "Authorization: must be Bearer KEY with the server's key.")

    async def _body(self, request: Request) -> dict[str, Any]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "Content-Type: must be application/json.")
        content, most = bytearray(), self._settings.max_body_bytes
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                async for chunk in request.stream():
                    content += chunk
                    if len(content) > most:
                        raise HTTPException(413, f"body: must have at most {most} bytes (--max-body-bytes).")
        except TimeoutError as problem:
            raise HTTPException(408, f"body: must arrive within {self._settings.body_seconds:g} s.") from problem
        body = await self._read(parse, bytes(content))
        self._require_name(str(body.get("model", self._loaded.name)))
        return body

    async def _read(self, read: Callable[P, T], *given: P.args, **settings: P.kwargs) -> T:
        """Do slow work of a request in another thread."""
        work = partial(read, *given, **settings)
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def _client(self, request: Request) -> str:
        return request.client.host if request.client else ""

    async def _answer(self, request: Request, asked: Asked) -> Response:
        generations = [self._worker.prepare(each) for each in asked.requests]
        if self._worker.failure is not None:
            raise EngineFailed(f"the engine failed: {self._worker.failure}.")
        exchange = Exchange(self._worker, generations, self._metrics)
        writing = Writing(model=self._loaded.name, is_chat=asked.is_chat, pieces=self._pieces)
        if asked.stream:
            events = exchange.events(writing, include_usage=asked.include_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        await _until_left(request, _all(exchange))
        return JSONResponse(writing.whole(generations))


async def _all(exchange: Exchange) -> None:
    async with aclosing(exchange.pieces()) as pieces:
        async for _ in pieces:
            pass


async def _until_left(request: Request, work: Awaitable[None]) -> None:
    """Do the work; raises ClientDisconnect when the client leaves first."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        done, _ = await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing not in done:
            raise ClientDisconnect
        doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refuse(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    known = {404: f"{request.url.path} not found; see /v1/models.", 405: f"{request.method} not supported here."}
    message = problem.detail
    if message == HTTPStatus(problem.status_code).phrase:
        message = known.get(problem.status_code, message)
    kind = KINDS.get(problem.status_code, "invalid_request_error")
    return JSONResponse(error(message, kind=kind), problem.status_code, headers=problem.headers)


def _host(address: str) -> str:
    """Return the host of an address with or without a port, an IPv6 one without brackets."""
    found = re.fullmatch(r"\[([^\]]*)\](?::\d+)?|([^:]*)(?::\d+)?", address.lower())
    return (found[1] or found[2] or "") if found else address.lower()


async def _no_embeddings(request: Request) -> Response:
    del request
    return JSONResponse(error("embeddings are not supported."), 501)


PAGE = Path(__file__).with_name("page")
FILES = {"/": "chat.html", "/chat.js": "chat.js", "/chat.css": "chat.css"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the addresses of the page and its parts."""
    return [Route(address, _send(PAGE / name)) for address, name in FILES.items()]


def _send(path: Path) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        del request
        return FileResponse(path, headers=HEADERS)

    return send
