import pytest

from lmtrain.run.compose.foreign.equivalents import equivalent


@pytest.mark.parametrize(
    ("name", "beside", "words"),
    [
        ("dataset_text_field", [], "source=files source.text_column=text source.paths=[my/notes]"),
        ("dataset_text_field", ["task=sft"], "source=files source.messages_column=text source.paths=[my/notes]"),
        ("text_key", ["source=hf_dataset"], "source.text_column=text source.name=roneneldan/TinyStories"),
        ("max_samples", [], "source=hf_dataset source.max_documents=text source.name=roneneldan/TinyStories"),
        ("dataset_config", ["source.name=a/b"], "source=hf_dataset source.config=text"),
    ],
)
def test_a_setting_of_data_comes_with_the_place_that_nobody_typed(name: str, beside: list[str], words: str) -> None:
    found = equivalent(name, "text", beside)
    assert " ".join((*found.words, *found.implied)) == words
    assert ("is an example" in found.note) == bool(found.implied)
