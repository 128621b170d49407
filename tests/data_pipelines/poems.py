"""A made-up source of text, and looking at what became of it."""

from data_pipelines.sources.base import Document, Source


class Poems(Source):
    """Made-up documents; `version` changes what the fingerprint says."""

    def __init__(self, count=60, version="1"):
        self.count, self.version = count, version

    @property
    def name(self):
        return "poems"

    def fingerprint(self):
        return f"{self.count} {self.version}"

    def documents(self):
        for number in range(self.count):
            yield Document(
                f"poem_{number}", f"Poem {number}\n" + f"roses are {number % 9}, <|end_of_text|> ünd\r\n" * 9
            )


def files(folder):
    """Return each file's bytes by its path in the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
