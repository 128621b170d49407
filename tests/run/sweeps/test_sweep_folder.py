from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.arguments import Arguments
from lmtrain.run.compose.search_words import SearchWords
from lmtrain.run.run_config import RunConfig
from lmtrain.run.sweeps.sweep_folder import SweepFolder, fingerprint_under, new_sweep, sweep_folder
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import ListedValues
from lmtrain.search.study import open_study
from lmtrain.tracking.sweep_file import SweepRun, SweepTrial, read_sweep
from tests.configs import config_with, default_config


def words_of(*words: str, space: str = "1", **settings: object) -> SearchWords:
    return SearchWords(
        settings=SearchSettings(**settings),
        space={"seed": ListedValues(values=("0", space))},
        fixed=tuple(words),
        arguments=Arguments(overrides=[*words]),
    )


def begun(folder: SweepFolder, words: SearchWords, config: RunConfig | None = None) -> None:
    folder.path.mkdir(exist_ok=True)
    config = config or default_config()
    new = new_sweep(words, config, name="s", command="python train.py -m a=1,2")
    folder.begin(new, under_metric=partial(fingerprint_under, words, config)).save(folder.path)


def test_more_trials_go_on_with_the_sweep_and_another_space_is_refused(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "s")
    begun(folder, words_of(trials=3))
    begun(folder, words_of(trials=9, parallel=2))
    with pytest.raises(
        ConfigurationError, match=r"is another sweep \(seed=0,1 and here 0,2\); give this one another run"
    ):
        begun(folder, words_of(space="2"))
    with pytest.raises(ConfigurationError, match=r"sweep\.seeds=1 and here 3"):
        begun(folder, words_of(seeds=3))


def test_another_config_is_refused_with_its_keys_named(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "s")
    begun(folder, words_of())
    model = default_config().values["model"]
    deeper = config_with(values={**default_config().values, "model": {**model, "num_layers": 97}})
    with pytest.raises(ConfigurationError, match=rf"\(model\.num_layers={model['num_layers']} and here 97\)"):
        begun(folder, words_of(), deeper)
    renamed = config_with(values={**default_config().values, "model": {f"key{index}": index for index in range(9)}})
    with pytest.raises(ConfigurationError, match=r"; [1-9]\d* more\)"):
        begun(folder, words_of(), renamed)


def test_a_metric_changes_while_no_trial_has_a_score_in_an_unnamed_sweep_too(tmp_path: Path) -> None:
    config = config_with(run=replace(default_config().run, root=str(tmp_path)))
    first, second = (words_of(f"sweep.metric={name}", metric=name) for name in ("train/loss", "validation/loss"))
    folder = sweep_folder(first, config)
    begun(folder, first, config)
    assert sweep_folder(second, config) == folder
    begun(folder, second, config)
    sweep = read_sweep(folder.path)
    assert sweep is not None
    assert sweep.metric == "validation/loss"
    sweep.trials.append(SweepTrial(number=0, values={}, runs=[SweepRun(folder="a", seed=1, score=1.0)]))
    sweep.save(folder.path)
    with pytest.raises(ConfigurationError, match=r"is another sweep \(sweep\.metric=validation/loss and here train/l"):
        begun(folder, first, config)
    assert sweep_folder(words_of("sweep.metric=a", metric="train/loss"), config) != folder


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "s")
    begun(folder, words_of())
    text = (folder.path / "sweep.json").read_text()
    (folder.path / "sweep.json").write_text(text.replace('"version": 1', '"version": 0'))
    with pytest.raises(DataError, match="another version"):
        begun(folder, words_of())


def test_a_search_killed_before_its_first_trial_goes_on(tmp_path: Path) -> None:
    words = words_of()
    for _ in range(2):
        new = new_sweep(words, default_config(), name="s", command="c")
        sweep = SweepFolder(tmp_path).begin(new, under_metric=lambda metric: "")
        assert sweep.trials == []
        open_study(tmp_path, words.settings)  # and killed here


def test_two_searches_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "s")
    with folder.held():
        assert folder.jobs.is_dir()


def test_a_sweep_is_named_after_its_words_but_not_after_its_limits() -> None:
    one, more, *others = (
        sweep_folder(words_of(*words), default_config()).path.name
        for words in (["model=a"], ["model=a", "sweep.trials=9"], ["model=b"], ["model=a", "sweep.seeds=2"])
    )
    assert one == more
    assert len({one, *others}) == 3, "sweep.seed is free, sweep.seeds is not"
    named = replace(default_config().run, name="race")
    assert sweep_folder(words_of(), config_with(run=named)).path.name == "race"
