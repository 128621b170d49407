from pathlib import Path

import pytest

from lmtrain.composition.execution.pipeline_check import require_trainings
from lmtrain.composition.execution.pipeline_stages import read_pipeline
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("talker.optimiser.lr=3", r"^stage talker: optimiser\.lr=3: there is no key .* Did you mean 'optimizer\.lr=3'"),
        ("base.optimizer.lr=fast", r"^stage base: optimizer\.lr=fast is not a number"),
        ("talker.schedule.warmup_steps=900", r"^stage talker: schedule\.warmup_steps=900 take 900 steps, longer than"),
    ],
)
def test_a_wrong_word_of_a_late_stage_is_refused_before_the_first(word: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        require_trainings(read_pipeline([f"run.root={tmp_path}", word]))


def test_words_of_a_base_that_its_run_does_not_hand_on_are_no_fault_of_a_later_stage(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("")
    prefer = ["talker.task=dpo", "talker.source=preference_pairs", f"talker.source.paths=[{pairs}]"]
    require_trainings(read_pipeline([f"run.root={tmp_path}", "base.optimizer.momentum=0.9", *prefer]))
    require_trainings(read_pipeline([f"run.root={tmp_path}", "--allow-target", "mine.", "talker.optimizer=inherited"]))
