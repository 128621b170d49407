import re

import pytest

from lmtrain.accounting.options.parts import (
    AttentionFacts,
    AverageFacts,
    CompileFacts,
    LossFacts,
    RecomputeFacts,
    ScalingFacts,
    ScheduleFacts,
)
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.schema.facts import Facts, facts_of

KINDS: dict[type[Facts], str] = {
    AttentionFacts: "measured_as",
    AverageFacts: "num_bytes",
    CompileFacts: "compiles",
    LossFacts: "makes_head_products",
    RecomputeFacts: "recomputes",
    ScheduleFacts: "decays",
}


def saying(kind: type[Facts], name: str) -> set[str]:
    """Return the options of a group that say something else than the plain case in a field."""
    found: set[str] = set()
    for path in (conf_folder() / kind.group).glob("*.yaml"):
        target = re.search(r"^_target_: (\S+)", path.read_text(), re.MULTILINE)
        node = {"_target_": target.group(1)} if target else {}
        said = facts_of(node, kind, on_gpu=True, is_compiled=True) or kind()
        found |= {path.stem} if getattr(said, name) != getattr(kind(), name) else set()
    return found


def test_every_group_has_its_options_that_are_not_plain():
    assert {kind.group: saying(kind, field) for kind, field in KINDS.items()} == {
        "attention": {"auto", "flash", "flex"},
        "weight_average": {"ema"},
        "compile": {"none"},
        "loss": {"chunked"},
        "recompute": {"auto", "none"},
        "schedule": {"cooldown", "inverse_sqrt", "linear", "trapezoid", "warmup_cosine"},
    }
    assert saying(RecomputeFacts, "is_cut") == {"auto", "none", "selective"}
    assert saying(CompileFacts, "falls_back") == {"auto"}
    assert saying(AttentionFacts, "chooses") == {"auto"}


@pytest.mark.parametrize(
    ("target", "rule"), [("llama.Llama", "width"), ("nano.nano", "depth"), ("gpt2.GPT2", None), ("llama_block.x", None)]
)
def test_a_model_names_the_rule_for_its_other_sizes(target, rule):
    said = facts_of({"_target_": f"lmtrain.models.{target}"}, ScalingFacts)
    assert (said.carries_over if said else None) == rule
    assert (said.counts_blocks if said else None) == ("num_layers" if target in ("llama.Llama", "gpt2.GPT2") else None)
