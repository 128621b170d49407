import pytest

from data_pipelines.build_request import BuildRequest
from data_pipelines.stages.train_tokenizer import ByteLevelSpec
from tests.data_pipelines.poems import Poems, question


def test_the_same_question_has_the_same_name():
    assert question().fingerprint == question().fingerprint


@pytest.mark.parametrize(
    "other",
    [
        {"source": Poems(version="2")},
        {"spec": ByteLevelSpec()},
        {"stages": ()},
        {"validation_fraction": 0.2},
        {"token_budget": 5},
        {"shard_tokens": 7},
    ],
)
def test_whatever_decides_the_tokens_changes_the_name(other):
    assert question(**other).fingerprint != question().fingerprint


def test_the_source_is_asked_for_its_fingerprint_once():
    class Counting(Poems):
        asked = 0

        def fingerprint(self):
            self.asked += 1
            return f"{self.asked}"

    source = Counting()
    asked = BuildRequest(source, (), ByteLevelSpec(), question().settings)
    assert asked.fingerprint == asked.fingerprint
    assert asked.source_fingerprint == "1"
    assert source.asked == 1
