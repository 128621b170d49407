import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.models.embeddings import GatedSmear, Smear
from lmtrain.models.llama_options import build_smear, check_head, check_values, skip_starts
from lmtrain.models.residual_stream import SkipStart


def test_smears_are_weights_or_a_gate():
    assert build_smear(8, None, embedding_smear=False) is None
    assert isinstance(build_smear(8, None, embedding_smear=True), Smear)
    assert isinstance(build_smear(8, 4, embedding_smear=True), GatedSmear)


def test_skips_start_per_layer():
    assert skip_starts(2, None, embedding_skip=False) == [None, None]
    assert skip_starts(2, None, embedding_skip=True) == [(1.0, 0.0), (1.0, 0.0)]
    assert skip_starts(2, SkipStart(last_stream=0.5), embedding_skip=True) == [(1.0, 0.0), (0.5, 0.0)]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: build_smear(8, 4, embedding_smear=False), "smear_gate_width=4 has no effect without"),
        (lambda: build_smear(8, 9, embedding_smear=True), r"smear_gate_width=9 is not 1 to model\.width=8 .*valid: 8"),
        (lambda: skip_starts(2, SkipStart(), embedding_skip=False), "embedding_skip_start=.* has no effect without"),
        (lambda: check_values((), 4, gate=12, init_std=0.0), "value_gate_width=12 has no effect without"),
        (lambda: check_values((), 4, gate=None, init_std=0.1), "value_embedding_init_std=0.1 has no effect without"),
        (lambda: check_values((-1,), 4, gate=None, init_std=0.0), r"value_embedding_layers=\[-1\] names layer -1"),
        (lambda: check_values((1, 1), 4, gate=None, init_std=0.0), r"value_embedding_layers=\[1, 1\].*twice.*\[1\]"),
        (lambda: check_head(0.0, None, tie_embeddings=False), "logit_soft_cap=0.0 is not above 0"),
        (lambda: check_head(float("nan"), None, tie_embeddings=False), "logit_soft_cap=nan is not above 0 and finite"),
        (lambda: check_head(None, 0.0, tie_embeddings=True), "head_init_std=0.0 needs a head of its own"),
    ],
)
def test_contradictions_are_refused_by_key(check, message):
    with pytest.raises(ConfigurationError, match=rf"^model\.{message}"):
        check()
