"""OpenAI's API over a model, as a Starlette application, and a chat page.

Keys, refusals, and the way of answers; the page's files are sent under a policy against any other script.
"""

import asyncio
import hmac
import re
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError, DataError
from lmtrain.inference.chat import chat_format
from lmtrain.inference.generation import Request as TextRequest
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.serving.body import Body, ChatBody, CompletionBody, RequestRefused, parse
from lmtrain.serving.engine_thread import EngineFailed, EngineWorker, Exchange, QueueFull
from lmtrain.serving.openai_answers import Writing, error

KINDS = {429: "rate_limit_error", 503: "server_error"}  # of others an invalid_request_error
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
MAX_BODY_BYTES = 1 << 20
KEPT_WORDS = 1_000  # of each thread: the 10,000 of tokenizers grow to 260 MB where texts of 200 characters are not cut
HERE = {"localhost", "127.0.0.1", "::1"}


@final
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Who may ask, and how long a body may take; `api_key` None admits everybody on this machine."""

    api_key: str | None = None
    body_seconds: float = 60.0
    host: str = "127.0.0.1"


def build_app(loaded: LoadedModel, worker: EngineWorker, settings: ServerSettings) -> Starlette:
    """Return the application; `worker` writes with `loaded`."""
    service = Service(loaded, worker, settings)
    routes = [
        Route("/health", service.health),
        Route("/v1/models", service.guarded(service.models)),
        Route("/v1/models/{name:path}", service.guarded(service.model)),
        Route("/v1/chat/completions", service.guarded(service.chat), methods=["POST"]),
        Route("/v1/completions", service.guarded(service.complete), methods=["POST"]),
        *(Route(address, partial(_send, PAGE / name)) for address, name in FILES.items()),
    ]
    refusals = (HTTPException, *LMTRAIN_ERRORS, QueueFull, EngineFailed, ClientDisconnect)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(refusals, _refuse))


@final
class Service:
    """The handlers of the addresses."""

    def __init__(self, loaded: LoadedModel, worker: EngineWorker, settings: ServerSettings) -> None:
        self._loaded, self._worker, self._settings = loaded, worker, settings
        self._format = chat_format(loaded)
        self._writing = partial(Writing, model=loaded.name, pieces=loaded.tokenizer.bytes_of_ids())
        loaded.tokenizer.keep_words(KEPT_WORDS)

    async def health(self, request: Request) -> Response:
        """Answer 200 while the engine works."""
        del request
        is_well = self._worker.failure is None
        return JSONResponse({"status": "ok" if is_well else "failed"}, 200 if is_well else 503)

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
            raise RequestRefused("model", f"must be {self._loaded.name}, got {name[:80]}.", code="model_not_found")

    async def chat(self, request: Request) -> Response:
        """Go on with a conversation."""
        body: ChatBody = await self._body(request, ChatBody)
        asked = await to_thread(body.texts, self._loaded, self._format)
        writing = self._writing(is_chat=True, counts=body.stream_options.include_usage)
        return await self._answer(request, writing, asked, streams=body.stream)

    async def complete(self, request: Request) -> Response:
        """Go on with a text."""
        body: CompletionBody = await self._body(request, CompletionBody)
        asked, counts = await to_thread(body.texts, self._loaded), body.stream_options.include_usage
        writing = self._writing(is_chat=False, echoes=body.echo, counts=counts)
        return await self._answer(request, writing, asked, streams=body.stream)

    def guarded(self, serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Let a handler answer allowed clients."""

        async def answer(request: Request) -> Response:
            self._require_allowed(request)
            return await serve(request)

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
            raise HTTPException(401, "The API key must be the server's, as in Authorization: Bearer KEY.")

    async def _body(self, request: Request, kind: type[Body]) -> Any:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "Content-Type: must be application/json.")
        content = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                async for chunk in request.stream():
                    content += chunk
                    if len(content) > MAX_BODY_BYTES:
                        raise HTTPException(413, f"The body must have at most {MAX_BODY_BYTES} bytes.")
        except TimeoutError as problem:
            raise HTTPException(408, f"The body must arrive within {self._settings.body_seconds:g} s.") from problem
        body = await to_thread(parse, bytes(content), kind)
        if body.model is not None:
            self._require_name(body.model)
        return body

    async def _answer(self, request: Request, writing: Writing, asked: list[TextRequest], *, streams: bool) -> Response:
        generations = [self._worker.engine.prepare(each) for each in asked]
        if self._worker.failure is not None:
            raise EngineFailed(f"the engine failed: {self._worker.failure}.")
        exchange = Exchange(self._worker, generations)
        if streams:
            headers = {"Cache-Control": "no-cache"}
            return StreamingResponse(exchange.events(writing), media_type="text/event-stream", headers=headers)
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
    message, headers = str(problem), None
    match problem:
        case HTTPException():
            status, message, headers = problem.status_code, problem.detail, problem.headers
            if message == HTTPStatus(status).phrase:
                message = f"{request.method} {request.url.path} is not supported; use POST /v1/chat/completions."
        case QueueFull():
            status, headers = 429, {"Retry-After": "1"}
        case RequestRefused(code="model_not_found"):
            status = 404
        case EngineFailed():
            status = 503
        case ClientDisconnect():
            status = 499
        case _:
            status = 400
    code = CODES.get(status, "invalid_value" if isinstance(problem, ConfigurationError | DataError) else None)
    named = {"param": problem.param, "code": problem.code} if isinstance(problem, RequestRefused) else {"code": code}
    content = error(message, kind=KINDS.get(status, "invalid_request_error"), **named)
    return JSONResponse(content, status, headers=headers)


def _host(address: str) -> str:
    """Return the host of an address with or without a port, an IPv6 one without brackets."""
    found = re.fullmatch(r"\[([^\]]*)\](?::\d+)?|([^:]*)(?::\d+)?", address.lower())
    return (found[1] or found[2] or "") if found else address.lower()


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


async def _send(path: Path, request: Request) -> Response:
    del request
    return FileResponse(path, headers=HEADERS)
