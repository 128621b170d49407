"""What slow, silent and many clients may do to a server."""

import socket
import time

from tests.serving.served import served


def connected(client, sent=b""):
    """Return a raw connection that has sent some bytes."""
    one = socket.create_connection((client.base_url.host, client.base_url.port), timeout=20)
    one.sendall(sent)
    return one


def answered(one):
    """Return an answer of /health with its body, which may come in a packet after the headers."""
    received = one.recv(4096)
    while b"ok" not in received:
        more = one.recv(4096)
        assert more, f"closed after {received!r}"
        received += more
    return received


def is_closed(one):
    """Wait for the server to close a connection; return whether it sent nothing before."""
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_whose_headers_do_not_end_is_closed():
    with served(header_seconds=0.3) as client:
        silent, begun = connected(client), connected(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        kept = connected(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" in answered(kept)
        assert is_closed(silent)
        assert is_closed(begun)
        time.sleep(0.3)
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # idle between requests for longer
        assert b"HTTP/1.1 200" in answered(kept)


def test_a_body_that_does_not_end_is_refused():
    with served(body_seconds=0.3) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow = connected(client, head + b"Content-Length: 100\r\n\r\n{")
        assert b"HTTP/1.1 408" in slow.recv(4096)


def test_many_silent_connections_shut_nobody_out(monkeypatch):
    monkeypatch.setattr("lmtrain.serving.http_server.MOST_CONNECTIONS", 8)
    with served() as client:
        silent = [connected(client) for _ in range(40)]
        for _ in range(3):
            assert client.get("/health").status_code == 200
        assert len(client.server.server_state.connections) <= 9
        for one in silent:
            one.close()
