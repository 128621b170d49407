import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.models.embeddings import GatedSmear, Smear
from lmtrain.models.llama_settings import (
    EmbeddingSettings,
    FeedForwardSettings,
    HeadSettings,
    SkipSettings,
    check_values,
)
from lmtrain.models.llama_settings import initial_stds as derived_stds
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.residual_stream import SkipStart

EXPERTS = Experts(num_experts=2, num_experts_per_token=1)


def initial_stds(std=0.1, **options):
    plain = {"embedding": None, "value_embedding": 0.0, "head": None, "zero_outputs": False, "tied": False}
    return derived_stds(std, num_layers=8, **plain | options)


def test_one_spread_is_the_others_unless_they_are_set():
    stds = initial_stds(embedding=0.8)
    assert (stds.matrices, stds.embedding, stds.head, stds.value_embedding) == (0.1, 0.8, 0.1, 0.0)
    assert stds.outputs == 0.1 / 4  # sqrt(2 x 8 layers)
    assert initial_stds(zero_outputs=True).outputs == 0.0


def test_smears_are_weights_or_a_gate():
    assert EmbeddingSettings().build_smear(8) is None
    assert isinstance(EmbeddingSettings(smear=True).build_smear(8), Smear)
    assert isinstance(EmbeddingSettings(smear=True, gate_width=4).build_smear(8), GatedSmear)


def test_skips_start_per_layer():
    assert SkipSettings().starts(2) == [None, None]
    assert SkipSettings(embedding_skip=True).starts(2) == [(1.0, 0.0), (1.0, 0.0)]
    assert SkipSettings(embedding_skip=True, start=SkipStart(last_stream=0.5)).starts(2) == [(1.0, 0.0), (0.5, 0.0)]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: EmbeddingSettings(gate_width=4), "smear_gate_width=4 has no effect without"),
        (
            lambda: EmbeddingSettings(smear=True, gate_width=9).build_smear(8),
            r"smear_gate_width=9 is not 1 to model\.width=8 .*valid: 8",
        ),
        (lambda: SkipSettings(start=SkipStart()), "embedding_skip_start=.* has no effect without"),
        (lambda: check_values((), 4, gate=12, init_std=0.0), "value_gate_width=12 has no effect without"),
        (
            lambda: check_values((), 4, gate=None, init_std=0.1),
            "value_embedding_init_std=0.1 has no effect without",
        ),
        (
            lambda: check_values((-1,), 4, gate=None, init_std=0.0),
            r"value_embedding_layers=\[-1\] names layer -1",
        ),
        (
            lambda: check_values((1, 1), 4, gate=None, init_std=0.0),
            r"value_embedding_layers=\[1, 1\].*twice.*\[1\]",
        ),
        (lambda: HeadSettings(soft_cap=0.0), "logit_soft_cap=0.0 is not above 0"),
        (lambda: HeadSettings(soft_cap=float("nan")), "logit_soft_cap=nan is not above 0 and finite"),
        (lambda: initial_stds(std=-1.0), "init_std=-1.0 is below 0"),
        (
            lambda: FeedForwardSettings(width=8, activation="relu_squared", experts=EXPERTS),
            "activation=relu_squared has",
        ),
        (lambda: initial_stds(head=0.0, tied=True), "head_init_std=0.0 needs a head of its own"),
    ],
)
def test_contradictions_are_refused_by_key(check, message):
    with pytest.raises(ConfigurationError, match=rf"^model\.{message}"):
        check()
