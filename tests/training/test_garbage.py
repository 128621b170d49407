import gc

import pytest

from lmtrain.training.lean_import import collecting_later


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_looked_for_afterwards_as_before_also_after_a_failure(collects, monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: collects)
    calls: list[str] = []
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))
    with pytest.raises(ZeroDivisionError), collecting_later():
        _ = 1 / 0
    assert calls == ["disable", *(["enable"] if collects else [])]
