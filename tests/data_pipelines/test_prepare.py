import json
import shutil
import time
from pathlib import Path

import pytest

from data_pipelines.prepare import prepare
from data_pipelines.sources.files import Files
from data_pipelines.sources.python_stdlib import PythonStandardLibrary
from data_pipelines.stages.clean import LengthFilter
from data_pipelines.stages.defaults import default_cleaning, default_deduplication
from data_pipelines.stages.train_tokenizer import ByteLevelSpec, BytePairSpec, FolderSpec
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.tokenizers.chat_styles import STYLES
from lmtrain.tokenizers.special_tokens import END_OF_TEXT
from tests.data_pipelines.poems import Poems, files

SETTINGS = {
    "cleaning": default_cleaning(),
    "deduplicate": default_deduplication(),
    "validation_fraction": 0.1,
    "test_fraction": 0.1,
    "shard_tokens": 2000,
}


def make(root, **settings):
    arguments = {"source": Poems(), "tokenizer": BytePairSpec(vocab_size=300), **SETTINGS, **settings}
    return prepare(root=str(root), **arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"))


def test_the_folder_is_named_after_its_source_and_alone(folder):
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert folder.name.startswith("poems-")


def test_two_builds_are_equal_to_the_byte(folder, tmp_path):
    assert files(make(tmp_path)) == files(folder)


def test_a_second_call_finds_the_first_without_a_word(folder, capsys):
    written = (folder / "dataset.json").stat().st_mtime_ns
    started = time.process_time()
    assert make(folder.parent) == folder
    assert time.process_time() - started < 0.2
    assert (folder / "dataset.json").stat().st_mtime_ns == written
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "other",
    [
        {"source": Poems(version="2")},
        {"tokenizer": BytePairSpec(vocab_size=301)},
        {"validation_fraction": 0.2},
        {"test_fraction": 0.2},
        {"cleaning": {"length": LengthFilter(min_characters=2)}},
        {"deduplicate": None},
        {"token_budget": 10**6, "allow_short": True},
        {"shard_tokens": 3000},
        {"token_dtype": "uint32"},
    ],
)
def test_another_question_gets_another_folder(folder, tmp_path, other):
    assert make(tmp_path, **other).name != folder.name


def test_how_it_was_encoded_makes_no_other_folder(folder):
    assert make(folder.parent, num_processes=2) == folder


def test_ones_own_three_files_just_work(tmp_path, capsys):
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(3):
        text = "".join(f"On day {day} we walked {day * number} miles.\n\n" for day in range(500))
        (notes / f"{number}.md").write_text(text)
    source = Files(paths=[str(notes)])
    dataset = open_dataset(prepare(source=source, tokenizer=BytePairSpec(vocab_size=4096), root=str(tmp_path / "data")))
    assert dataset.manifest.vocab_size == 4096
    assert all(dataset.split(name).num_tokens > 100 for name in ("train", "validation", "test"))
    told = capsys.readouterr().err
    assert "documents of more than a tenth of the text are cut into parts" in told
    assert "in use: so little text needs no more, see tokenizer.vocab_size" in told


@pytest.mark.slow
def test_the_standard_library_is_prepared_with_its_own_files_held_out(tmp_path):
    spec = BytePairSpec(vocab_size=4096)
    dataset = open_dataset(prepare(source=PythonStandardLibrary(), tokenizer=spec, root=str(tmp_path)))
    validation = dataset.split("validation")
    assert 0.02 < validation.text_bytes / sum(split.text_bytes for split in dataset.splits.values()) < 0.1
    assert 1.2 < dataset.manifest.references["validation"].xz_bits_per_byte < 2
    assert validation.text_bytes / validation.num_tokens > 3
    started = time.process_time()
    prepare(source=PythonStandardLibrary(), tokenizer=spec, root=str(tmp_path))
    assert time.process_time() - started < 1  # 0.1 s on an idle machine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation_fraction": 1.2}, r"data\.folder\.validation_fraction=1\.2 is not a fraction"),
        ({"shard_tokens": 0}, r"data\.folder\.shard_tokens=0 must be positive; nearest valid: 1\."),
        (
            {"token_dtype": "uint8"},
            r"data\.folder\.token_dtype=uint8 is not uint16 or uint32\. Did you mean 'uint(16|32)'\?",
        ),
        (
            {"token_dtype": "uint16", "tokenizer": ByteLevelSpec(vocab_size=100_000)},
            r"token_dtype=uint16 holds 65,536 entries, tokenizer\.vocab_size=100000 has more; nearest valid: uint32\.",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_and_leave_nothing(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": Poems(count=0)}, "source poems gives no document"),
        ({"tokenizer": FolderSpec(path="nowhere", vocab_size=300)}, r"nowhere has no tokenizer\.json"),
    ],
)
def test_data_that_cannot_be_is_refused_and_leaves_nothing(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        make(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_damaged_is_refused_not_used(folder, tmp_path):
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    (copy / "train_00000.ds").write_bytes((folder / "train_00000.ds").read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train_00000\.ds has .* truncated, .*Delete the folder and prepare it again"):
        make(tmp_path)


def test_a_root_that_cannot_be_written_is_an_environment_problem(tmp_path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(EnvironmentProblem, match=r"cannot be written: .*data\.folder\.root"):
        make(tmp_path / "root")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_line_and_the_next_call_goes_on(folder, tmp_path, monkeypatch, capsys):
    import data_pipelines.finish as finish_module

    def full(*arguments):
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"x")

    with monkeypatch.context() as patched:
        patched.setattr(finish_module, "write_manifest", full)
        with pytest.raises(
            EnvironmentProblem, match=r"disk is full: free some .*data\.folder\.root.*work is kept"
        ) as raised:
            make(tmp_path)
    assert "\n" not in str(raised.value)
    assert visible(tmp_path) == []

    class Unread(Poems):
        def documents(self):
            pytest.fail("read again")

    assert files(make(tmp_path, source=Unread())) == files(folder)
    assert "going on with the work in" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def visible(root):
    """Return the names in a folder that a person sees."""
    return [path.name for path in root.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize(
    ("spec", "way"),
    [
        (BytePairSpec(vocab_size=300), "set tokenizer.chat=true, or take"),
        (ByteLevelSpec(), "set tokenizer.chat=true, or take"),
        ("a fixed one", "none can be added: begin with a chat model"),
    ],
)
def test_conversations_without_chat_tokens_are_refused_before_anything_is_read(tmp_path, spec, way):
    if spec == "a fixed one":
        spec = FolderSpec(path=str(make(tmp_path / "other") / "tokenizer"))
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    chats = Files(paths=[str(tmp_path / "chats.jsonl")], messages_column="messages")
    with pytest.raises(ConfigurationError, match=f"^files gives conversations, .*{way}"):
        make(tmp_path / "data", source=chats, tokenizer=spec)
    assert not (tmp_path / "data").exists()


def test_a_conversation_beyond_the_tokenizers_style_is_counted_and_the_rest_is_prepared(tmp_path):
    talks = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}] for n in range(40)]
    talks[7][1]["tool_calls"] = [{"name": "count", "arguments": {}}]
    talks[7] += [{"role": "tool", "content": "7"}, {"role": "assistant", "content": "seven"}]
    lines = (json.dumps({"messages": talk}) for talk in talks)
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    chats = Files(paths=[str(tmp_path / "chats.jsonl")], messages_column="messages")
    llama3 = next(style.special_tokens for style in STYLES if style.name == "llama3")
    spec = BytePairSpec(vocab_size=261, special_tokens=(END_OF_TEXT, *llama3))
    found = open_dataset(make(tmp_path / "data", source=chats, tokenizer=spec, cleaning={}, deduplicate={})).manifest
    assert found.dropped == {"messages: one tool call and nothing else a turn in the llama3 style": 1}
    assert sum(split.num_documents for split in found.splits.values()) == 39


def test_validation_paths_hold_out_their_files_alone_and_their_copies_do_not_train(tmp_path):
    own, held = tmp_path / "own", tmp_path / "held"
    for folder in (own, held):
        folder.mkdir()
    for number in range(40):
        (own / f"{number}.txt").write_text(f"training text {number}\n")
    (held / "a.txt").write_text("held-out text\n")
    (own / "copy.txt").write_text("held-out text\n")
    source = Files(paths=[str(own)], validation_paths=[str(held)])
    folder = make(tmp_path / "data", source=source, tokenizer=ByteLevelSpec())
    dataset = open_dataset(folder)
    splits = {name: split.num_documents for name, split in dataset.manifest.splits.items()}
    assert splits == {"train": 40, "validation": 1}
    assert dataset.manifest.dropped == {"exact duplicate": 1}
    alone = Files(paths=[str(own / "copy.txt")], validation_paths=[str(held)])
    with pytest.raises(
        DataError, match=r"none of 1 document fell into the train split \(left out: 1 exact duplicate\)"
    ):
        make(tmp_path / "none", source=alone, tokenizer=ByteLevelSpec())


def test_the_tail_is_the_end_of_the_text_and_its_folder_another_one(tmp_path):
    lines = "".join(f"line {number} of one book\n" for number in range(900))
    book = tmp_path / "book.txt"
    book.write_text(lines)
    asked = {
        "source": Files(paths=[str(book)]),
        "tokenizer": ByteLevelSpec(),
        "root": str(tmp_path),
        "num_processes": 0,
    }
    folder = prepare(**asked, split="tail")
    dataset = open_dataset(folder)
    sizes = {name: split.text_bytes for name, split in dataset.manifest.splits.items()}
    assert sum(sizes.values()) == len(lines)
    assert sizes["validation"] / len(lines) == pytest.approx(0.05, abs=0.01)
    assert prepare(**asked, split="tail") == folder
    assert prepare(**asked) != folder
    assert "rule" not in open_dataset(prepare(**asked)).manifest.settings["held_out"]


def test_held_out_text_is_not_compressed_where_no_reference_is_wanted(tmp_path, capsys):
    folder = make(tmp_path, references=False)
    assert open_dataset(folder).manifest.references == {}
    assert "compress" not in capsys.readouterr().err
    assert make(tmp_path) == folder, "the tokens are the same, so is the name"
    assert set(open_dataset(make(tmp_path / "other")).manifest.references) == {"validation", "test"}
