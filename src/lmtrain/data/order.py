"""The order of reading windows: arithmetic instead of a stored shuffle.

Window i of a run is a keyed permutation of i, evaluated index by index: a Feistel network on the bits of the index,
walked on until it lands below the number of windows (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
Any corpus starts at once, in no memory, and where a run stands is one integer. `N positions`.
"""

import hashlib
from typing import final

import numpy as np
from numpy.typing import NDArray

NUM_ROUNDS = 8
_EPOCH_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd: no two epochs share a key
_ROUND_STEP = 0xD1342543DE82EF95
_ROUND_KEYS = np.array([number * _ROUND_STEP % (1 << 64) for number in range(NUM_ROUNDS)], dtype=np.uint64)


@final
class WindowOrder:
    """Every window once an epoch, in a new order each epoch; a pure function of seed, fingerprint and position."""

    def __init__(self, *, num_windows: int, seed: int, fingerprint: str) -> None:
        """Order `num_windows` windows of the data set with this fingerprint."""
        assert num_windows > 0, num_windows
        key = hashlib.sha256(f"{seed}:{fingerprint}".encode()).digest()
        self.num_windows = num_windows
        self._key = np.frombuffer(key, dtype="<u8", count=1)[0]
        num_bits = (num_windows - 1).bit_length()
        self._low_bits = np.uint64(num_bits - num_bits // 2)
        self._low_mask = np.uint64((1 << (num_bits - num_bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (num_bits // 2)) - 1)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the window at each position of the run's order: [N] -> [N]. Many at once is much cheaper."""
        assert positions.size == 0 or int(positions.min()) >= 0, "positions count from 0"
        epochs = positions // self.num_windows
        keys = self._key + epochs.astype(np.uint64) * _EPOCH_STEP
        windows = (positions - epochs * self.num_windows).astype(np.uint64)
        outside = np.arange(len(windows))
        while outside.size:
            windows[outside] = self._scramble(windows[outside], keys[outside])
            outside = outside[windows[outside] >= self.num_windows]
        return windows.astype(np.int64)

    def _scramble(self, x: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = x >> self._low_bits, x & self._low_mask
        for number in range(0, NUM_ROUNDS, 2):
            high = high ^ (_mix(low + (keys + _ROUND_KEYS[number])) & self._high_mask)
            low = low ^ (_mix(high + (keys + _ROUND_KEYS[number + 1])) & self._low_mask)
        return (high << self._low_bits) | low


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
