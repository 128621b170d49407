"""`lmtrain tokenizer`: learn a tokenizer from a source's text or take an existing one, save it, and compare it."""

import json
from dataclasses import asdict
from typing import Any

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.help import HELP_FLAGS, help_page
from lmtrain.run.compose.paths import conf_folder

CONFIG = "make_tokenizer"


def make(words: list[str], *, program: str = "lmtrain tokenizer") -> int:
    """Make a tokenizer and print where it is and how many bytes its tokens stand for; --json prints one object.

    Raises:
        ConfigurationError: The command line is wrong; nothing was started.
    """
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, config=CONFIG, words=words))
        return 0
    from lmtrain.run.compose.arguments import parse_arguments
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.schema.check import check_node
    from lmtrain.run.schema.node import instantiate

    as_json = "--json" in words
    arguments = parse_arguments([word for word in words if word != "--json"], budget_group=False)

    def task(config: dict[str, Any], choices: Choices) -> None:
        del choices
        for name in ("source", "cleaning", "deduplicate", "tokenizer"):
            check_node(config[name], key=name, allowed=arguments.allowed_targets)
        node = check_node(config["make"], key="make", allowed=arguments.allowed_targets)
        report = instantiate(node, key="make")
        print(json.dumps(asdict(report)) if as_json else _page(report))

    for_each_config(task, arguments, config_name=CONFIG)
    return 0


def _page(report: Any) -> str:
    lines = [
        f"{report.vocab_size:,} entries: {report.num_used:,} for text, "
        + format_count(len(report.special_tokens), "special token")
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
