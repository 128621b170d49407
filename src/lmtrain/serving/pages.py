"""The chat page: three files of the server's own, under a policy against any other script."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

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
