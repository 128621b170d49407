from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.tokenizers import hub
from lmtrain.tokenizers.hub import find_tokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from tests.tokenizers import layouts

ANSWER: Any = SimpleNamespace(status_code=404, headers={}, request=None)  # of whichever client the hub's library uses


@pytest.fixture
def online(monkeypatch, tmp_path):
    """A hub that has one model, `someone/model`, and says what was asked of it."""
    folder = layouts.llama_3(tmp_path / "hub")
    asked: list[str] = []

    def download(name, file, *, revision):
        asked.append(file)
        if name != "someone/model":
            raise RepositoryNotFoundError("404", response=ANSWER)
        if not (folder / file).is_file():
            raise EntryNotFoundError("404")
        return str(folder / file)

    monkeypatch.setattr(hub, "_require_answer", lambda name, revision, typed: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    return asked


def test_a_folder_and_a_file_are_found_without_asking_the_hub(online, tmp_path):
    folder = layouts.gpt2(tmp_path / "gpt2")
    assert find_tokenizer(str(folder)) == folder
    assert find_tokenizer(str(folder / "tokenizer.json")) == folder / "tokenizer.json"
    assert online == []


def test_a_name_on_the_hub_is_downloaded_with_what_tells_its_end_of_text(online):
    folder = find_tokenizer("someone/model")
    assert online == ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
    assert load_tokenizer(folder).vocab_size == 361


def test_what_is_in_the_cache_needs_no_network(online, monkeypatch, tmp_path):
    folder = layouts.gpt2(tmp_path / "cached")
    cached = str(folder / "tokenizer.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: cached)
    assert find_tokenizer("gpt2") == folder
    assert online == []


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c", "my.json"])
def test_a_path_that_does_not_exist_is_not_asked_of_the_hub(online, name):
    with pytest.raises(DataError, match=r"tokenizer\.name=.* does not exist here"):
        find_tokenizer(name)
    assert online == []


def test_an_unknown_name_is_refused(online):
    with pytest.raises(ConfigurationError, match=r"tokenizer\.name=gptoo is no folder here and no model on the hub"):
        find_tokenizer("gptoo")


def test_a_name_that_cannot_be_one_is_refused():
    with pytest.raises(ConfigurationError, match="neither here nor a name that the hub can have"):
        find_tokenizer("no names with spaces")


@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        (GatedRepoError("403", response=ANSWER), EnvironmentProblem, "hf auth login"),
        (EntryNotFoundError("404"), DataError, r"has no tokenizer\.json on the hub; save it with transformers"),
        (OSError("reset"), EnvironmentProblem, "cannot be reached"),
    ],
)
def test_what_the_hub_refuses_is_one_line(online, monkeypatch, problem, error, message):
    def refuse(*_, **__):
        raise problem

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(error, match=message) as refusal:
        find_tokenizer("someone/model")
    assert len(str(refusal.value).splitlines()) == 1


def test_an_unreachable_hub_is_asked_once_and_told_in_one_line(monkeypatch, capsys):
    class Session:
        def head(self, url, *, timeout):
            raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.utils.get_session", Session)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    with pytest.raises(EnvironmentProblem, match=r"tokenizer\.name=gpt2 .* cannot be reached; go online once"):
        find_tokenizer("gpt2")
    assert capsys.readouterr().err == ""
