"""Readers of YAML that are not in the lock: `make clients` puts them beside the environment."""

from pathlib import Path

import pytest

BIN = Path(__file__).parents[2] / ".cache/clients/bin"
needed = pytest.mark.skipif(not BIN.is_dir(), reason="no reader of this YAML is in the lock: make clients brings them")
