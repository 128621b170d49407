"""The HTTP server of an application: uvicorn with a bound on open connections."""

from typing import Final

import uvicorn
from starlette.types import ASGIApp

# Clients and proxies keep an idle connection for up to 60 s (nginx, load balancers; httpx and openai 5 s). Where the
# server is the first to close it, a request on its way meets a reset.
IDLE_SECONDS: Final = 75
MOST_CONNECTIONS: Final = 512  # further ones are answered with 503


def http_server(app: ASGIApp, *, host: str, port: int, drain_seconds: int) -> uvicorn.Server:
    """Return a server; its `run` returns after SIGTERM and the running answers, which may take `drain_seconds`."""
    settings = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
        server_header=False,
    )
    return uvicorn.Server(settings)
