import pickle
import struct
from typing import Any

import pytest

from lmtrain.storage.bounded_pickle import require_bounded


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_python_writes_is_bounded(protocol: int) -> None:
    one: dict[str, Any] = {"a": [1, 2.5, None, True, 1 << 200, "ä" * 300, b"b" * 300, bytearray(9)], "b": (1, (2,))}
    require_bounded(pickle.dumps([one, one, dict, 10**6 * "x"], protocol))


@pytest.mark.parametrize(
    "attack",
    [
        b"\x80\x02Nr\xff\xff\xff\xff.",  # LONG_BINPUT
        b"\x80\x02Np4294967295\n.",  # PUT
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # BYTEARRAY8
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",  # BINBYTES8
        b"\x80\x02X\xff\xff\xff\x7f.",  # BINUNICODE
        b"\x80\x02\xff.",
        b"\x80\x02cposix\nsystem",
        b"",
    ],
)
def test_a_pickle_that_asks_for_more_than_itself_is_refused(attack: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        require_bounded(attack)
