import pytest

from data_pipelines.engines.local import LocalEngine
from data_pipelines.source_pass import SourcePass
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.split import HeldOut
from tests.data_pipelines.poems import Poems


class Mixed(Poems):
    def documents(self):
        yield Skipped("bad:1", "not JSON")
        yield from super().documents()
        yield Skipped("bad:2", "not JSON")
        yield Document("blank", " \n")


def test_every_drop_is_counted_by_its_reason_and_the_first_of_each_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 2000)
    held_out = HeldOut(validation_fraction=0.1, test_fraction=0.1)
    reading = SourcePass(Mixed(), (LengthFilter(),), LocalEngine(num_processes=0), held_out, tmp_path)
    blocks = list(reading.blocks())
    assert len(blocks) > 3
    assert sum(len(block.documents) for block in blocks) == 60
    assert reading.dropped == {"not JSON": 2, "empty": 1}
    assert reading.notes(reading.dropped) == ["1 dropped (empty, first: blank)", "2 dropped (not JSON, first: bad:1)"]


class WithControls(Poems):
    def documents(self):
        yield from super().documents()
        yield Document("bell", "a\x00 text with\x07 a \x1b[1mbell\x1b[0m")
        yield Document("mark", "\ufeffa text that begins with a mark")


@pytest.mark.parametrize("num_processes", [0, 2])
def test_characters_that_cleaning_removes_are_counted_wherever_it_runs(tmp_path, num_processes):
    held_out = HeldOut(validation_fraction=0.1, test_fraction=0.1)
    reading = SourcePass(
        WithControls(), (UnicodeRepair(),), LocalEngine(num_processes=num_processes), held_out, tmp_path
    )
    assert sum(len(block.documents) for block in reading.blocks()) == 62
    assert reading.dropped == {"control characters": 5}
    assert reading.notes(reading.dropped) == ["5 removed (control characters, first: bell)"]
