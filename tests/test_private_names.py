"""docs/private_names.md lists every private name of other packages that the sources use, and no other."""

import ast
import re

import pytest

from tests import tiny
from tests.private_names import defined, private_uses, uses_of

PAGE = (tiny.PROJECT / "docs/private_names.md").read_text()
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)


def test_the_table_has_every_private_name_that_is_used_and_no_other():
    listed = [(file, name) for file, names, _ in ROWS for name in re.findall(r"`(\w+)`", names)]
    assert len(listed) == len(set(listed)), "each once"
    assert set(listed) == private_uses()


def test_every_row_says_what_it_buys():
    assert ROWS
    assert all(len(bought.split()) > 5 for *_, bought in ROWS)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from torch._ops import OpOverload", {"_ops"}),
        ("from hydra.core import _private", {"_private"}),
        ("import omegaconf._utils as utils", {"_utils"}),
        ("trainer._signal_connector.received", {"_signal_connector"}),
        ("getattr(optimizer, '_step_supports', False)", {"_step_supports"}),
        ("vars(module)['_current_fx_name'] = None", {"_current_fx_name"}),
        ("NAME = 'torch._inductor.config'", {"_inductor"}),
        ("f(_internal=True)", {"_internal"}),
        ("class A(B):\n def _own(self): super()._own()", {"_own"}),
        ("class A(B):\n @override\n def _theirs(self): ...", {"_theirs"}),
        ("class A:\n def _own(self): self._own(); self.__dict__", set()),
        ("class A:\n def __init__(self): self._ours = 1\n def f(self): return self._ours", set()),
        ("import os\nos._exit(1); named._replace(a=1)", set()),
    ],
)
def test_what_is_found(line, names):
    tree = ast.parse(line)
    assert set(uses_of(tree, defined(tree))) == names
