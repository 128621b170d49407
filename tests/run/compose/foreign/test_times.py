import pytest

from lmtrain.run.compose.foreign.equivalents import equivalent


@pytest.mark.parametrize(
    ("name", "value", "beside", "words"),
    [
        ("max_time", "02:00:00", [], "budget.hours=120min"),
        ("max_time", "1-12", [], "budget.hours=2160min"),
        ("max_time", "1-12:30", [], "budget.hours=2190min"),
        ("max_time", "90", [], "budget.hours=90s"),
        ("max_time", "2h", [], "budget.hours=2h"),
        ("max_duration", "2e9T", [], "budget.tokens=2e9"),
        ("max_duration", "1ep", [], "budget.epochs=1"),
        ("max_duration", "100", [], "budget.steps=100"),
        ("max_time", "00:00:00:30", [], "budget.hours=30s"),
        ("gpu_hours", "8", ["devices=8"], "budget.hours=1"),
        ("gpu_hours", "12", ["--trainer.devices=2", "num_nodes=3"], "budget.hours=2"),
        ("gpu_hours", "8", [], "budget.hours=8"),
    ],
)
def test_a_length_of_training_is_converted_beside_the_others_of_its_command(name, value, beside, words):
    assert " ".join(equivalent(name, value, beside).words) == words
