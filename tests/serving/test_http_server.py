"""What slow and many clients may do to a server."""

import socket

from tests.serving.served import served


def connected(client, sent=b""):
    """Return a raw connection that has sent some bytes."""
    one = socket.create_connection((client.base_url.host, client.base_url.port), timeout=20)
    one.sendall(sent)
    return one


def test_a_body_that_does_not_end_is_refused():
    with served(body_seconds=0.3) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow = connected(client, head + b"Content-Length: 100\r\n\r\n{")
        assert b"HTTP/1.1 408" in slow.recv(4096)


def test_connections_beyond_the_most_are_refused(monkeypatch):
    monkeypatch.setattr("lmtrain.serving.http_server.MOST_CONNECTIONS", 8)
    with served() as client:
        others = [connected(client) for _ in range(8)]
        assert client.get("/health").status_code == 503
        for one in others:
            one.close()
