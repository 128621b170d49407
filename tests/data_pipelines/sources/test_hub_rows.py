import pytest

from data_pipelines.sources import hub_rows
from data_pipelines.sources.hub_rows import Wanted, find_dataset, num_rows, split_names
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem

README = """---
configs:
- config_name: prose
  default: {default}
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
- config_name: code
  data_files: code/*
---
# Notes
"""


@pytest.fixture
def corpus(tmp_path):
    """A folder as the hub has them: two configs, one of two splits, one of these in two files."""
    folder = tmp_path / "corpus"
    for name in ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-00001", "code/code"):
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"text": "{name}"}}\n')
    (folder / "README.md").write_text(README.format(default="true"))
    return folder


def wanted(name, *, config="prose", split="train", revision=None):
    return Wanted(name=str(name), config=config, split=split, revision=revision)


def test_a_config_and_its_splits_are_found(corpus):
    builder = find_dataset(wanted(corpus), cache=None)
    assert split_names(builder) == ["train", "test"]
    assert num_rows(builder, "train") is None
    assert num_rows(builder, "nope") is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"config": "pros"},
            r"source\.config=pros is no config of .*: it has prose, code\. Did you mean 'prose'\?",
        ),
        ({"split": "tests"}, r"source\.split=tests is no split of .*: it has train, test\. Did you mean 'test'\?"),
        ({"config": "code", "split": "test"}, r"it has train\."),
    ],
)
def test_a_wrong_config_or_split_lists_the_right_ones(corpus, wrong, message):
    with pytest.raises(DataError, match=message):
        find_dataset(wanted(corpus, **wrong), cache=None)


def test_a_default_config_needs_no_name_and_without_one_the_choice_is_listed(corpus):
    find_dataset(wanted(corpus, config=None), cache=None)
    (corpus / "README.md").write_text(README.format(default="false"))
    with pytest.raises(DataError, match=r"source\.config has no value and .* has several: prose, code; choose one"):
        find_dataset(wanted(corpus, config=None), cache=None)


def test_several_splits_at_once_are_refused(corpus):
    with pytest.raises(ConfigurationError, match=r"source\.split=train\+test adds splits"):
        find_dataset(wanted(corpus, split="train+test"), cache=None)


def test_a_folder_without_data_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"source\.name=.* cannot be loaded: \S") as refusal:
        find_dataset(wanted(tmp_path, config=None), cache=None)
    assert "\n" not in str(refusal.value)


def test_a_path_that_is_no_folder_is_refused_with_the_nearest(corpus):
    with pytest.raises(DataError, match=rf"is neither a folder here nor OWNER/NAME .* Did you mean '{corpus}'\?"):
        find_dataset(wanted(corpus.parent / "corpse"), cache=None)


class Answers:
    """A hub that answers with a problem, or with a commit."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def dataset_info(self, name, *, revision, timeout):
        self.asked.append((name, revision, timeout))
        if isinstance(self.answer, Exception):
            raise self.answer
        return type("Info", (), {"sha": self.answer})()


def http_problem(kind, status):
    problem = kind.__new__(kind)
    Exception.__init__(problem, f"{status} of the hub")
    return problem


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            OSError("no\nnetwork"),
            EnvironmentProblem,
            r"a/b is no folder here, and the hub cannot be reached: no network;",
        ),
        (
            http_problem(hub_rows.RepositoryNotFoundError, 404),
            DataError,
            r"a/b is no dataset of the hub that you may read",
        ),
        (
            http_problem(hub_rows.RevisionNotFoundError, 404),
            DataError,
            r"source\.revision=v1 is no branch, tag or commit",
        ),
        (http_problem(hub_rows.HfHubHTTPError, 503), EnvironmentProblem, r"a/b: the hub answers 503 of the hub"),
    ],
)
def test_the_hub_is_asked_first_and_once_and_its_answer_is_one_line(monkeypatch, answer, kind, message):
    answers = Answers(answer)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: answers)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(kind, match=message) as refusal:
        find_dataset(wanted("a/b", revision="v1"), cache=None)
    assert answers.asked == [("a/b", "v1", 10.0)]
    assert "\n" not in str(refusal.value)


def test_a_misspelt_folder_is_told_where_the_hub_cannot_be_reached(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: Answers(OSError("no network")))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "corpus").mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match=r"Did you mean 'mine/corpus'\?"):
        find_dataset(wanted("mine/corpsu"), cache=None)


def test_everything_is_read_from_the_commit_that_the_hub_had_first(monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: Answers("c0ffee"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    monkeypatch.setattr("datasets.get_dataset_default_config_name", lambda *_, **__: None)

    def configs(name, *, revision):
        asked.append((name, revision))
        return ["other"]

    monkeypatch.setattr("datasets.get_dataset_config_names", configs)
    with pytest.raises(DataError, match="it has other"):
        find_dataset(wanted("a/b"), cache=None)
    assert asked == [("a/b", "c0ffee")]


def test_without_a_network_by_choice_what_was_downloaded_is_looked_for_and_the_hub_is_not_asked(monkeypatch):
    answers = Answers("c0ffee")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: answers)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="the hub cannot be reached"):
        find_dataset(wanted("nobody/nothing"), cache=None)
    assert answers.asked == []
