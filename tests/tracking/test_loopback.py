import pytest

from lmtrain.tracking.ports import in_web_address, is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_addresses_of_this_machine_alone(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_addresses_that_others_reach(host):
    assert not is_loopback(host)


def test_the_sixth_version_stands_in_brackets():
    assert (in_web_address("::1"), in_web_address("localhost")) == ("[::1]", "localhost")
