import gc

from hydra import compose, initialize_config_dir
from hydra._internal import defaults_list

from lmtrain.composition.command_line.lean_compose import NAME, lean_composing


def test_maps_are_made_for_interpolations_alone_and_an_option_named_by_another_is_found(tmp_path, monkeypatch):
    for name, text in {
        "job.yaml": "defaults:\n  - model: wide\n  - data: ${model}_text\n  - _self_\n",
        "model/wide.yaml": "width: 8\n",
        "data/wide_text.yaml": "root: here\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made: list[object] = []
    original = getattr(defaults_list, NAME)
    monkeypatch.setattr(defaults_list, NAME, lambda *given: made.append(given) or original(*given))
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        whole, num_maps = compose("job"), len(made)
        made.clear()
        with lean_composing():
            assert not gc.isenabled()
            lean = compose("job")
    assert lean == whole == {"model": {"width": 8}, "data": {"root": "here"}}
    assert len(made) == 1 < num_maps
    assert gc.isenabled()


def test_another_hydra_composes_as_it_does(monkeypatch):
    monkeypatch.delattr(defaults_list, NAME)
    with lean_composing():
        assert not hasattr(defaults_list, NAME)
