"""Addresses that only this machine reaches."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def in_web_address(host: str) -> str:
    """Return a host as it stands in an address of the web: [::1] for ::1."""
    return f"[{host}]" if ":" in host else host
