"""A made-up source of text, asking for a data set of it, and looking at what became of it."""

from collections.abc import Iterator

from data_pipelines.build import Build
from data_pipelines.build_request import BuildRequest
from data_pipelines.engines.local import LocalEngine
from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.train_tokenizer import BytePairSpec, TokenizerSpec
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

STAGES = (UnicodeRepair(), LengthFilter(), ExactDeduplication())


class Poems(Source):
    """Made-up documents; `version` changes what the fingerprint says."""

    def __init__(self, count=60, version="1"):
        self.count, self.version = count, version

    name = "poems"

    def fingerprint(self):
        return self.version

    def documents(self) -> Iterator[Document | Skipped]:
        for number in range(self.count):
            lines = f"roses are {number % 9}, <|end_of_text|> ünd\r\n" * 9
            yield Document(f"poem_{number}", f"Poem {number}\n{lines}")


class Recorder(TokenizerSpec):
    """Bytes as they are, after a look at the texts."""

    vocab_size = 257
    special_tokens = ByteLevelTokenizer().special_tokens

    def __init__(self, sample_bytes):
        self.sample_bytes = sample_bytes
        self.seen = []

    def build(self, texts):
        self.seen = list(texts)
        return ByteLevelTokenizer()

    def fingerprint_parts(self):
        return {"kind": "recorder"}


def make(folder, *, source=None, spec=None, token_budget=None, num_processes=0):
    """Fill a folder with poems."""
    folder.mkdir(exist_ok=True)
    request = BuildRequest(
        source=source or Poems(),
        stages=STAGES,
        spec=spec or BytePairSpec(vocab_size=300),
        held_out=HeldOut(validation_fraction=0.1, test_fraction=0.1),
        shard_tokens=2000,
        token_dtype="uint16",
        token_budget=token_budget,
    )
    Build(request, LocalEngine(num_processes=0), num_processes)(folder)
    return folder


def files(folder):
    """Return each file's bytes by its path in the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
