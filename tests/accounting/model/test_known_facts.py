from dataclasses import replace

from lmtrain.accounting.model.model_facts import KnownFacts, known_facts, model_row, table_row
from tests.accounting.model.test_model_facts import FACTS

KNOWN = KnownFacts(facts=FACTS, context_tokens=256, fewest_tokens=128, most_tokens=4096)
TABLE = {"models": {"tiny": model_row(FACTS)}, "settings": {"key": [table_row(KNOWN, model="tiny")]}}


def test_a_row_gives_back_what_was_measured():
    assert known_facts(TABLE, "key", 256) == FACTS
    assert known_facts(TABLE, "other", 256) is None


def test_twice_the_tokens_take_twice_the_bytes_of_a_sequence():
    facts = known_facts(TABLE, "key", 512)
    assert facts == replace(
        FACTS,
        activations=replace(FACTS.activations, per_sequence=100.0),
        workspace_of_many=replace(FACTS.workspace_of_many, per_sequence=20.0),
        block_workspace_of_many=replace(FACTS.block_workspace_of_many, per_sequence=10.0),
    )
