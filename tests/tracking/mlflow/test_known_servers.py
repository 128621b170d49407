import pytest

from lmtrain.tracking.mlflow.client import server_of


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("HTTP://Me:pw@Team.example:5000/x?y#z", None),  # a scheme is in small letters
        ("http://Me:pw@Team.example:5000/x?y", "http://team.example:5000"),
        ("postgresql+psycopg://team.example/db", "postgresql+psycopg://team.example"),
        ("https://[::1]:5000", "https://[::1]:5000"),
        ("https://team.example\\@evil.example", None),
        ("https://team.example#@evil.example", None),
        ("https://team.example?@evil.example", "https://team.example"),
        ("sqlite:////tmp/x.db", None),
    ],
)
def test_the_server_of_an_address(address: str, server: str | None) -> None:
    assert server_of(address) == server
