"""A page on a tried config as one HTML file beside the runs, named after the config's words."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from lmtrain.report.markup import Markup, tag, web_page
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.redaction import redact_override


def write_tuning_page(kind: str, title: str, *parts: Markup, folder: Path, words: Sequence[str]) -> Path:
    """Write FOLDER/KIND-HASH.html with its title, the config's words and these parts; return its path."""
    name = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:8]
    path = folder / f"{kind}-{name}.html"
    folder.mkdir(parents=True, exist_ok=True)
    typed = " ".join(redact_override(word) for word in words) or "the defaults"
    write_text(path, web_page(title, tag("h1", title), tag("p", typed), *parts))
    return path
