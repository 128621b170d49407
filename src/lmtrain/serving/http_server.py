"""The HTTP server of an application: uvicorn with deadlines for requests and a bound on open connections."""

import asyncio
import resource
from functools import partial
from typing import Any, Final, final

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.auto import AutoHTTPProtocol

# Clients and proxies keep an idle connection for up to 60 s (nginx, load balancers; httpx and openai 5 s). Where the
# server is the first to close it, a request on its way meets a reset.
IDLE_SECONDS: Final = 75
HEADER_SECONDS: Final = 10.0  # from a connection's start, or a request's first byte, to the end of its headers
MOST_CONNECTIONS: Final = 512


def http_server(
    app: ASGIApp, *, host: str, port: int, drain_seconds: int, header_seconds: float = HEADER_SECONDS
) -> uvicorn.Server:
    """Return a server; its `run` returns after SIGTERM and the running answers, which may take `drain_seconds`."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, connections = min(MOST_CONNECTIONS, num_files // 2), dict[BoundedProtocol, None]()
    protocol = partial(BoundedProtocol, connections=connections, most=most, header_seconds=header_seconds)
    config: dict[str, Any] = {"http": protocol}  # a class, or as here any function that makes one
    settings = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
        server_header=False,
        **config,
    )
    return uvicorn.Server(settings)


@final
class BoundedProtocol(AutoHTTPProtocol):
    """One connection, closed where the headers of its request are not there in time.

    `connections` are the open ones, longest open first; beyond `most` of them one without a request is closed.
    """

    def __init__(
        self, *given: Any, connections: "dict[BoundedProtocol, None]", most: int, header_seconds: float, **settings: Any
    ) -> None:
        super().__init__(*given, **settings)
        self._connections, self._most, self._header_seconds = connections, most, header_seconds
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        cycle: Any = getattr(self, "cycle", None)  # uvicorn's request, from the end of its headers
        return cycle is not None and not cycle.response_complete

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = transport  # as uvicorn keeps it
        self._connections[self] = None
        if len(self._connections) > self._most:
            closed = next((other for other in self._connections if not other.is_busy), self)
            del self._connections[closed]
            closed.transport.abort()
        self._start()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_busy:
            self._stop()
        elif self._deadline is None:
            self._start()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._connections.pop(self, None)
        super().connection_lost(exc)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._header_seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
