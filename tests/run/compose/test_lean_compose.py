import gc

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import defaults_list
from omegaconf import OmegaConf, _utils

from lmtrain.run.compose.lean_compose import LOADER, MAP, lean_composing
from tests.configs import option_files


def test_maps_are_made_for_interpolations_alone_and_an_option_named_by_another_is_found(tmp_path, monkeypatch):
    for name, text in {
        "job.yaml": "defaults:\n  - model: wide\n  - data: ${model}_text\n  - _self_\n",
        "model/wide.yaml": "width: 8\n",
        "data/wide_text.yaml": "root: here\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made: list[object] = []
    original = getattr(defaults_list, MAP)
    monkeypatch.setattr(defaults_list, MAP, lambda *given: made.append(given) or original(*given))
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        whole, num_maps = compose("job"), len(made)
        made.clear()
        with lean_composing():
            assert not gc.isenabled()
            lean = compose("job")
    assert lean == whole == {"model": {"width": 8}, "data": {"root": "here"}}
    assert len(made) == 1 < num_maps
    assert gc.isenabled()


def test_every_option_reads_the_same_to_the_type_of_each_value(tmp_path):
    odd = tmp_path / "odd.yaml"
    odd.write_text("a: [1e-3, 1_000, 0x1F, .inf, -.nan, 2020-01-01, 10:30, on, ~, '1']\nb: ${a}\nc: ???\n")
    for file in [*option_files(), odd]:
        plain = OmegaConf.to_container(OmegaConf.load(file))
        with lean_composing():
            assert repr(OmegaConf.to_container(OmegaConf.load(file))) == repr(plain), file


def test_a_key_that_stands_twice_is_refused_as_before(tmp_path):
    (tmp_path / "twice.yaml").write_text("a: 1\na: 2\n")
    with lean_composing(), pytest.raises(Exception, match="found duplicate key a"):
        OmegaConf.load(tmp_path / "twice.yaml")


def test_other_versions_compose_as_they_do(monkeypatch):
    monkeypatch.delattr(defaults_list, MAP)
    monkeypatch.delattr(_utils, LOADER)
    with lean_composing():
        assert not hasattr(defaults_list, MAP)
