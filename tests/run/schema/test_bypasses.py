"""Known ways around a list of allowed code, in every slot and place of a config; `make fuzz` searches for further ones.

One that it finds is added to found_bypasses.jsonl, and tried in every slot and place from then on.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.check_config import check_config
from lmtrain.run.schema.slots import SLOTS
from lmtrain.run.schema.targets import ALLOWED_PREFIXES, find_target
from tests.tiny import TINY

EXAMPLES = int(os.environ.get("LMTRAIN_FUZZ_EXAMPLES", "0"))  # of each reader, by `make fuzz`; of names twenty times

OUTSIDE = (
    *("os.system", "subprocess.call", "builtins.eval", "builtins.exec", "builtins.__import__", "posix.system"),
    *("importlib.import_module", "hydra.utils.instantiate", "hydra.utils.call", "hydra.utils.get_method"),
    *("hydra._internal.utils._locate", "hydra.utils.get_object", "operator.attrgetter", "functools.partial"),
    *(
        "torch.load",
        "torch.hub.load",
        "pickle.loads",
        "dill.loads",
        "webbrowser.open",
        "runpy.run_path",
        "code.interact",
    ),
    *("omegaconf.OmegaConf.load", "yaml.unsafe_load", "joblib.load", "numpy.load", "shutil.rmtree", "ctypes.CDLL"),
)
# Through a module of ours: what it imports, its loader, a class's own attributes, what a function's globals hold.
INSIDE = (
    *("lmtrain.cli.os.system", "lmtrain.cli.importlib.import_module", "lmtrain.cli.serve", "lmtrain.cli.find_verb"),
    *("lmtrain.models.llama.torch.load", "lmtrain.models.llama.nn.Module", "lmtrain.models.llama.__builtins__.eval"),
    *("lmtrain.models.llama.__loader__.load_module", "lmtrain.models.llama.Llama.__class__"),
    *("lmtrain.models.llama.Llama.__init__.__globals__", "lmtrain.models.llama.Llama.__subclasses__"),
    *("lmtrain.models.llama.Llama.load_state_dict", "lmtrain.models.llama.Llama.register_forward_hook"),
    *("lmtrain.storage.hashed_folder.start_aside", "lmtrain.storage.plain_values.load_plain"),
    *("lmtrain.run.schema.targets.import_target", "lmtrain.run.schema.instantiate.instantiate"),
    *(
        "lmtrain.cli.commands.serve.serve",
        "lmtrain.evaluation.code_process.main",
        "lmtrain.launch.local.Popen",
    ),
    *("data_pipelines.processes._start", "data_pipelines.processes.run_jobs", "data_pipelines.engines.local_jobs.main"),
    *("data_pipelines.engines.stage_worker.pickle.loads", "data_pipelines.engines.ray.dill.load"),
    *("torch.optim.optimizer.torch.load", "torch.optim.sys.modules", "torch.optim.Optimizer.load_state_dict"),
    *("torch.optim.optimizer.functools.partial", "torch.optim.swa_utils.AveragedModel", "torchao.optim.torch.load"),
    *("lightning.pytorch.callbacks.model_checkpoint.os.system", "lightning.pytorch.callbacks.torch.load"),
)
SPELLED = (
    *("LMTRAIN.cli.serve", "lmtrain..cli.os.system", ".lmtrain.cli.serve", "lmtrain.cli.", "lmtrain.", "lmtrain", ""),
    *("lmtrain.models.llama.Llama\0", "lmtrain.models.llama.Llama\u200b", "lmtrain.models.ll\u0430ma.Llama"),
    "lmtrain.cli\nos.system",
    *("\uff4cmtrain.models.llama.Llama", "lmtrain.models.llama.\uff2clama", "lmtrain\u2024models.llama.Llama"),
    *("lmtrain/models/llama.Llama", "lmtrain.models.llama:Llama", "lmtrain.models/../../os.system", "lmtrain.%6f%73"),
    *("${oc.env:HOME}", "${oc.decode:os.system}", "${hydra:runtime.cwd}", "${model._target_}", "lmtrain.${x}"),
)
FOUND_FILE = Path(__file__).with_name("found_bypasses.jsonl")  # by a search: `make fuzz` adds what it finds
FOUND = tuple(map(json.loads, FOUND_FILE.read_text().splitlines()))
BYPASSES = (*OUTSIDE, *INSIDE, *SPELLED, *FOUND)
PARTS = sorted({part for name in BYPASSES for part in name.split(".")} | {"Llama", "models", "optim", "AdamW", "Muon"})
BESIDE = ({}, {"_partial_": True}, {"_args_": ["x"]}, {"_recursive_": False}, {"x": {"_target_": "os.system"}})
DANGEROUS: tuple[Any, ...] = (vars(os)["system"], subprocess.Popen, subprocess.call, eval, exec, __import__, torch.load)


def drawn(num_examples: int) -> settings:
    """Return the settings of a search: the same each time, or by `make fuzz` more and others."""
    return settings(
        max_examples=20 * EXAMPLES or num_examples, derandomize=not EXAMPLES, database=None, deadline=None,
        print_blob=bool(EXAMPLES),
    )  # fmt: skip


def taken(name: str, key: str) -> Callable[..., Any] | None:
    """Return what a slot takes under a name, None where it refuses; any other error passes through."""
    try:
        return find_target(name, key=key)
    except ConfigurationError as refusal:
        is_one_line = "\n" not in str(refusal)
    assert is_one_line
    return None


def require_harmless(found: Callable[..., Any] | None, name: str) -> None:
    """Hold that only public things of allowed packages are taken, under a name of plain letters."""
    if found is not None:
        assert found not in DANGEROUS
        assert f"{found.__module__}.".startswith((*ALLOWED_PREFIXES, "lightning.pytorch."))
        assert name.isascii()
        assert not any(part.startswith("_") for part in name.split("."))
        assert found.__qualname__ == name.rpartition(".")[2]  # itself, and no attribute of something


@pytest.mark.parametrize("name", BYPASSES)
def test_no_slot_takes_a_known_bypass(name: str) -> None:
    assert [key for key in SLOTS if taken(name, key) is not None] == []


NAMES = st.tuples(
    st.sampled_from(sorted(SLOTS)),
    st.sampled_from([*ALLOWED_PREFIXES, ""]),
    st.lists(st.sampled_from(PARTS) | st.text(max_size=6), min_size=1, max_size=5),
)


def test_no_slot_takes_what_chance_makes_of_their_parts() -> None:
    search(FOUND_FILE)


def search(file: Path) -> None:
    """Try names by chance, others each time in `make fuzz`; one that a slot takes is added to a file, made small."""
    failing: list[str] = []

    @drawn(300)
    @given(NAMES)
    def trying(drawing: tuple[str, str, list[str]]) -> None:
        key, prefix, parts = drawing
        name = prefix + ".".join(parts)
        failing.append(name)
        require_harmless(taken(name, key), name)
        failing.pop()

    try:
        trying()
    except BaseException:
        if failing and failing[-1] not in FOUND:  # the last one that failed is the smallest
            with file.open("a") as found:
                found.write(json.dumps(failing[-1]) + "\n")
        raise


def test_a_bypass_that_is_found_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = taken

    def leaking(name: str, key: str) -> Callable[..., Any] | None:
        return subprocess.Popen if name.endswith("Llama.system") else sound(name, key)

    monkeypatch.setattr(sys.modules[__name__], "taken", leaking)
    monkeypatch.setattr(sys.modules[__name__], "EXAMPLES", 0)  # a short `make fuzz` draws too few to meet this name
    monkeypatch.setattr(
        sys.modules[__name__],
        "NAMES",
        st.tuples(st.just("model"), st.just(""), st.lists(st.sampled_from(["Llama", "system", "x"]), max_size=4)),
    )
    with pytest.raises(AssertionError):
        search(tmp_path / "found.jsonl")
    assert [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()] == ["Llama.system"]


@cache
def _sound() -> dict[str, Any]:
    return compose_config([*TINY, "budget.steps=1"])


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _places(node[key])


@drawn(120)
@given(st.data())
def test_no_place_of_a_config_takes_a_bypass(data: st.DataObject) -> None:
    config = copy.deepcopy(_sound())
    holder, key = data.draw(st.sampled_from(list(_places(config))))
    name = data.draw(st.sampled_from(BYPASSES))
    more = data.draw(st.sampled_from(BESIDE))
    if key == "_target_":
        holder[key] = name
    else:
        holder[key] = {"_target_": name, **more}
    with pytest.raises(ConfigurationError) as refusal:
        check_config(config, allowed=())
    assert "\n" not in str(refusal.value)
