"""Ports typed on a command line: within their bounds, and free on this machine."""

import ipaddress
import socket
from typing import Final

from lmtrain.errors import ConfigurationError

MAX_PORT: Final = 65_535
PORTS_TRIED: Final = 100


def require_port(port: int, *, least: int = 1) -> int:
    """Return a port within its bounds; with `least` 0 the system may choose."""
    if not least <= port <= MAX_PORT:
        raise ConfigurationError(f"--port: must be from {least} to {MAX_PORT}, got {port}.")
    return port


def require_free(host: str, port: int) -> None:
    """Refuse a port in use."""
    require_port(port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            raise ConfigurationError(
                f"--host {host} --port {port} cannot be served: {problem.strerror}; choose another port."
            ) from problem


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
