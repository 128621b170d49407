"""One rank's part of it, without ranks; tests/parallel/test_fsdp.py has two real ones."""

import pickle
import subprocess
import zipfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint as sharded_checkpoint
from torch import nn
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.shard_reading import METADATA, part_optimizer_state, read_metadata, read_shards, read_whole
from lmtrain.parallel.shard_writing import SHARDED, WriteShards, plan_shards
from lmtrain.storage.checkpoint_layout import OPTIMIZERS, REST, WEIGHTS, sharded_name
from lmtrain.storage.hashed_folder import aside_of, damage, start_aside
from tests.hostile_pickles import dotted


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_is_read(tmp_path):
    state: dict[str, Any] = {
        "w": torch.randn(8, 8),
        "step": 3,
        "nested": {"a": torch.ones(3, dtype=torch.bfloat16)},
        "name": "x",
    }
    sharded_checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    read: dict[str, Any] = {
        "w": torch.zeros(8, 8),
        "step": 0,
        "nested": {"a": torch.zeros(3, dtype=torch.bfloat16)},
        "name": "",
    }
    read_shards(read, tmp_path, alone=True)
    assert (read["step"], read["name"]) == (3, "x")
    assert torch.equal(read["w"], state["w"])
    assert torch.equal(read["nested"]["a"], state["nested"]["a"])


class Calls:
    def __init__(self, function, *arguments):
        self.answer = (function, arguments)

    def __reduce__(self):
        return self.answer


@pytest.mark.parametrize("function", [subprocess.call, eval, torch.load])
def test_a_call_is_refused_and_never_made(tmp_path, function):
    witness = tmp_path / "witness"
    (tmp_path / METADATA).write_bytes(pickle.dumps(Calls(function, f"touch {witness}")))
    with pytest.raises(EnvironmentProblem, match=r"names .*which lmtrain's checkpoints never do"):
        read_metadata(tmp_path)
    assert not witness.exists()


def test_a_dotted_name_behind_a_trusted_module_is_refused(tmp_path):
    witness = tmp_path / "witness"
    pickle.loads(dotted(witness))
    assert witness.exists(), "the pickle does what a guard is for"
    witness.unlink()
    (tmp_path / METADATA).write_bytes(dotted(witness))
    with pytest.raises(EnvironmentProblem, match=r"names torch\.distributed.*os\.system, which"):
        read_metadata(tmp_path)
    assert not witness.exists()


def _word(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def _setting(module: str, name: str, attribute: str, value: bytes) -> bytes:
    """Return a pickle that sets an attribute of a class or function: BUILD with a state of two."""
    return b"\x80\x04" + _word(module) + _word(name) + b"\x93N}" + _word(attribute) + value + b"s\x86b."


@pytest.mark.parametrize(
    ("module", "name", "attribute", "value"),
    [
        ("pathlib", "PosixPath", "name", _word("authorized_keys")),
        ("pathlib", "PosixPath", "__truediv__", _word("pathlib") + _word("PosixPath") + b"\x93"),
        ("torch.serialization", "_get_layout", "__defaults__", _word("x") + b"\x85"),
        ("torch.distributed.checkpoint.metadata", "Metadata", "__init__", b"N"),
    ],
)
def test_no_pickle_changes_a_class_for_the_rest_of_the_process(tmp_path, module, name, attribute, value):
    (tmp_path / METADATA).write_bytes(_setting(module, name, attribute, value))
    with pytest.raises(EnvironmentProblem, match="it changes a class or a constant that it names"):
        read_metadata(tmp_path)
    assert (tmp_path / "a").name == "a"
    assert Metadata(state_dict_metadata={}).storage_data is None
    assert torch.serialization._get_layout.__defaults__ is None


def test_no_pickle_changes_a_constant(tmp_path):
    constant = _word("torch.distributed.checkpoint.metadata") + _word("_MEM_FORMAT_ENCODING") + b"\x93K\x00\x85R"
    (tmp_path / METADATA).write_bytes(b"\x80\x04" + constant + b"}" + _word("_value_") + b"K\x09sb.")
    with pytest.raises(EnvironmentProblem, match="it changes a class or a constant that it names"):
        read_metadata(tmp_path)
    assert _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT.value == 0


def _packed(folder, place, *, compression=zipfile.ZIP_DEFLATED, pickled=None):
    """Write a piece again, compressed or with another pickle."""
    piece = (folder / place.relative_path).read_bytes()[place.offset :][: place.length]
    with zipfile.ZipFile(BytesIO(piece)) as old, zipfile.ZipFile(folder / "x.distcp", "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, pickled if pickled and name.endswith("data.pkl") else old.read(name))
    place.relative_path, place.offset = "x.distcp", 0
    place.length = (folder / "x.distcp").stat().st_size


ASKS_2_GIB = b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("value", ["w", "step"])
@pytest.mark.parametrize(
    ("attack", "part"),
    [
        (_packed, r"x\.distcp cannot be read: its entry .* is compressed"),
        (partial(_packed, compression=zipfile.ZIP_STORED, pickled=ASKS_2_GIB), "names builtins.bytearray"),
        (lambda _, place: setattr(place, "relative_path", "/dev/zero"), "has the place '/dev/zero' of a shard"),
        (lambda _, place: setattr(place, "relative_path", "../state.pt"), r"has the place '\.\./state\.pt' of a shard"),
        (lambda _, place: setattr(place, "relative_path", "gone.distcp"), "gone.distcp is missing"),
        (lambda _, place: setattr(place, "length", -1), "of a shard; use another"),
        (lambda _, place: setattr(place, "transform_descriptors", ["stream.zstd"]), "wants __0_0.distcp unpacked"),
    ],
)
def test_a_piece_of_a_shard_is_a_plain_file_of_the_folder(tmp_path, value, attack, part):
    sharded_checkpoint.save({"w": torch.zeros(4), "step": 3}, checkpoint_id=tmp_path, no_dist=True)
    metadata = pickle.loads((tmp_path / METADATA).read_bytes())
    attack(tmp_path, next(place for index, place in metadata.storage_data.items() if index.fqn == value))
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(EnvironmentProblem, match=part):
        read_shards({"w": torch.zeros(4), "step": 0}, tmp_path, alone=True)


@pytest.fixture
def state():
    """A state of two tensors and a number."""
    return {"weights": {"a": torch.arange(6.0), "b": torch.ones(2, 2)}, "step": 3}


@pytest.fixture
def planned(tmp_path, state):
    """What a job of one rank would write."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    final = tmp_path / "step_00000003"
    start_aside(aside_of(final))
    try:
        yield plan_shards(state, final, rank=0, timeout_seconds=0.2, rest={"lmtrain": {"step": 3}, "epoch": 1})
    finally:
        dist.destroy_process_group()


def test_torch_reads_what_was_written_and_the_folder_is_whole(planned, state):
    assert pickle.loads(pickle.dumps(planned))() > 0
    assert damage(planned.final) is None
    empty: dict[str, Any] = {"weights": {"a": torch.zeros(6), "b": torch.zeros(2, 2)}, "step": 0}
    dcp.load(empty, checkpoint_id=planned.final / SHARDED, no_dist=True)
    assert empty["step"] == 3
    assert all(torch.equal(empty["weights"][name], state["weights"][name]) for name in "ab")
    assert torch.load(planned.final / SHARDED / "meta.pt")["epoch"] == 1


def of_two_ranks(planned: WriteShards) -> WriteShards:
    return WriteShards(**{**planned.__dict__, "num_ranks": 2})


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (None, r"rank 1 has not written its shards within 0\.2 s"),
        ("", "rank 1: it could not write"),
        ("full", "rank 1: full"),
    ],
)
def test_a_rank_that_fails_or_says_nothing_is_named_and_nothing_is_left(planned, report, message):
    if report is not None:
        (aside_of(planned.final) / ".rank1.failed").write_text(report)
    with pytest.raises(EnvironmentProblem, match=message):
        of_two_ranks(planned)()
    assert list(planned.final.parent.iterdir()) == []


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model and its optimizer, of two groups in another order than the model's, after two steps."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups: list[dict[str, Any]] = [
        {"params": [model[1].weight], "lr": 0.1, "betas": (0.8, 0.9)},
        {"params": [model[0].bias, model[0].weight, model[1].bias], "lr": 0.2},
    ]
    optimizer = torch.optim.AdamW(groups)
    for _ in range(2):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The shards of a trained model, as one rank writes them."""
    model, optimizer = trained()
    state = {WEIGHTS: get_model_state_dict(model), sharded_name(0): get_optimizer_state_dict(model, optimizer)}
    sharded_checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    torch.save({"global_step": 2}, tmp_path / REST)
    return tmp_path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_read_whole_fill_a_plain_model_and_optimizer(sharded: Path) -> None:
    whole = read_whole(sharded)
    model, optimizer = trained()
    expected = optimizer.state_dict()
    fresh = torch.optim.AdamW([{**group, "params": [*group["params"]]} for group in optimizer.param_groups])
    fresh.load_state_dict(whole[OPTIMIZERS][0])
    found = fresh.state_dict()
    assert whole["global_step"] == 2
    torch.testing.assert_close(whole[WEIGHTS], dict(model.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert found["param_groups"] == expected["param_groups"]


def test_the_state_of_other_groups_is_refused() -> None:
    model, optimizer = trained()
    other = torch.optim.AdamW(model.parameters()).state_dict()
    with pytest.raises(EnvironmentProblem, match=r"groups of \[4\] parameters, this one has groups of \[1, 3\]"):
        part_optimizer_state(other, get_optimizer_state_dict(model, optimizer))
