"""`lmtrain tokenizer`: learn a tokenizer from a source's text or take one that exists, save it, and compare it."""

import json
from dataclasses import asdict
from typing import Any

from lmtrain.composition.help import HELP_FLAGS, help_page
from lmtrain.composition.paths import conf_folder
from lmtrain.errors import ConfigurationError

CONFIG = "make_tokenizer"


def make(words: list[str], *, program: str = "lmtrain tokenizer") -> int:
    """Make a tokenizer and print where it is and how many bytes its tokens stand for; --json prints one object.

    Raises:
        ConfigurationError: The command line is wrong; nothing was started.
    """
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, config=CONFIG))
        return 0
    from lmtrain.composition.arguments import parse_arguments
    from lmtrain.composition.check import check_node
    from lmtrain.composition.compose import Choices, for_each_config
    from lmtrain.composition.instantiate import instantiate

    as_json = "--json" in words
    arguments = parse_arguments([word for word in words if word != "--json"], budget_group=False)

    def task(config: dict[str, Any], choices: Choices) -> None:
        del choices
        for name in ("source", "cleaning", "tokenizer"):
            check_node(config[name], key=name, allowed=arguments.allowed_targets)
        node = check_node(config["make"], key="make", allowed=arguments.allowed_targets)
        report = instantiate(node, key="make")
        print(json.dumps(asdict(report)) if as_json else _page(report))

    for_each_config(task, arguments, config_name=CONFIG, program=program)
    return 0


def require_size_for_model(config: dict[str, Any], *, allowed: list[str]) -> None:
    """Refuse a model that follows the size of a tokenizer which nobody has told, and say the size.

    Raises:
        ConfigurationError: `tokenizer.vocab_size` is null and something of the run follows it.
    """
    followers = [name for name in ("model", "data") if config[name].get("vocab_size", 0) is None]
    if not followers:
        return
    from lmtrain.composition.check import check_node
    from lmtrain.composition.instantiate import instantiate

    spec = instantiate(check_node(config["tokenizer"], key="tokenizer", allowed=allowed), key="tokenizer")
    msg = f"tokenizer.vocab_size=null, but {followers[0]}.vocab_size follows it and decides the model's shape"
    raise ConfigurationError(f"{msg}; this tokenizer's: tokenizer.vocab_size={spec.vocab_size}.")


def _page(report: Any) -> str:
    lines = [
        f"{report.vocab_size:,} entries: {report.num_used:,} for text, {len(report.special_tokens)} special tokens"
        + (f", {report.num_unused:,} unused (so little text needs no more)" if report.num_unused else ""),
        *(f"left out, because it changes the form of a text: {step}" for step in report.left_out),
        "",
        _table(report.bytes_per_token, report.sizes),
    ]
    if report.folder:
        lines += ["", f"saved: {report.folder}", f"use it: tokenizer=folder tokenizer.path={report.folder}"]
    return "\n".join(lines)


def _table(density: dict[str, dict[str, float]], sizes: dict[str, int]) -> str:
    """Return a row a type of text, a column a tokenizer: bytes a token stands for, more is denser."""
    names = list(sizes)
    rows = [["bytes per token", *names], ["entries", *(f"{size:,}" for size in sizes.values())]]
    rows += [[kind, *(f"{by_name[name]:.3f}" for name in names)] for kind, by_name in density.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
