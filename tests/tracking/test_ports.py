import socket

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.ports import require_free


def test_a_taken_port_is_refused_with_the_next_free_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"--port {port} is taken on 127.0.0.1; nearest valid: \d+"):
            require_free("127.0.0.1", port)
    with pytest.raises(ConfigurationError, match=r"--host 192.0.2.1 cannot be served"):
        require_free("192.0.2.1", 8000)
    for none, nearest in ((65_536, 65_535), (0, 1)):
        with pytest.raises(ConfigurationError, match=rf"--port {none} is not within .* nearest valid: {nearest}\."):
            require_free("127.0.0.1", none)
