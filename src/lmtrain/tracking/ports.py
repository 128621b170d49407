"""Ports typed on a command line: within their bounds, and free on this machine."""

import ipaddress
import socket
from typing import Final

from lmtrain.errors import ConfigurationError

MAX_PORT: Final = 65_535
PORTS_TRIED: Final = 100


def require_port(port: int, *, least: int = 1) -> int:
    """Return a port within its bounds; with `least` 0 the system may choose.

    Raises: ConfigurationError.
    """
    if not least <= port <= MAX_PORT:
        nearest = max(least, min(port, MAX_PORT))
        raise ConfigurationError(f"--port {port} is not within {least} to {MAX_PORT}; nearest valid: {nearest}.")
    return port


def require_free(host: str, port: int) -> None:
    """Refuse a port in use, and name the nearest free one.

    Raises:
        ConfigurationError: It is not a port, it is taken, or this machine has no such address.
    """
    require_port(port)
    if _problem(host, port) is None:
        return
    above, below = (
        range(port + 1, min(port + PORTS_TRIED, MAX_PORT + 1)),
        range(port - 1, max(port - PORTS_TRIED, 0), -1),
    )
    free = next((other for other in (*above, *below) if _problem(host, other) is None), None)
    if free is None:
        raise ConfigurationError(f"--host {host} cannot be served: {_problem(host, port)}; nearest valid: 127.0.0.1.")
    raise ConfigurationError(f"--port {port} is taken on {host}; nearest valid: {free}.")


def _problem(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            return str(problem)
    return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def in_web_address(host: str) -> str:
    """Return a host as it stands in an address of the web: [::1] for ::1."""
    return f"[{host}]" if ":" in host else host
