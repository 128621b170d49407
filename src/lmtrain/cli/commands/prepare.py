"""Commands that make data: `prepare` shards, `verify` them, and make a `tokenizer`."""

import importlib
from dataclasses import asdict
from typing import Any, Final

from lmtrain.accounting.quantities import format_count
from lmtrain.cli.help import HELP_FLAGS, help_page
from lmtrain.errors import EXIT_DONE
from lmtrain.json_output import print_json
from lmtrain.run.compose.paths import conf_folder

TOKENIZER_CONFIG: Final = "make_tokenizer"


def prepare(words: list[str], *, program: str = "lmtrain prepare") -> int:
    """Prepare a data set as shards and print its folder."""
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, config="prepare", words=words))
        return EXIT_DONE
    from lmtrain.run.execution.preparation import prepare_data

    return prepare_data(words)


def verify(words: list[str], *, program: str = "lmtrain verify") -> int:
    """Verify the checksums of prepared data; return 1 if something is wrong."""
    # The library never imports the pipelines statically.
    return importlib.import_module("data_pipelines.verify").verify(words, program=program)


def tokenizer(words: list[str], *, program: str = "lmtrain tokenizer") -> int:
    """Learn a tokenizer or take one, and print its folder and its bytes per token; --json prints one object."""
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, config=TOKENIZER_CONFIG, words=words))
        return EXIT_DONE
    from lmtrain.run.compose.arguments import parse_arguments
    from lmtrain.run.compose.compose import configs_of
    from lmtrain.run.schema.check import check_node
    from lmtrain.run.schema.node import instantiate

    as_json = "--json" in words
    arguments = parse_arguments([word for word in words if word != "--json"], budget_group=False)
    for config, _ in configs_of(arguments, config_name=TOKENIZER_CONFIG):
        for name in ("source", "cleaning", "deduplicate", "tokenizer"):
            check_node(config[name], key=name, allowed=arguments.allowed_targets)
        node = check_node(config["make"], key="make", allowed=arguments.allowed_targets)
        report = instantiate(node, key="make")
        print_json(asdict(report)) if as_json else print(_page(report))
    return EXIT_DONE


def _page(report: Any) -> str:
    unused = f", {report.num_unused:,} unused (so little text needs no more)" if report.num_unused else ""
    special = format_count(len(report.special_tokens), "special token")
    names = list(report.sizes)
    rows = [["bytes per token", *names], ["entries", *(f"{size:,}" for size in report.sizes.values())]]
    rows += [[kind, *(f"{found[name]:.3f}" for name in names)] for kind, found in report.bytes_per_token.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"{report.vocab_size:,} entries: {report.num_used:,} for text, {special}{unused}",
        *(f"left out, because it changes the form of a text: {step}" for step in report.left_out),
        "",
        *("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows),
    ]
    if report.folder:
        lines += ["", f"saved: {report.folder}", f"use it: tokenizer=folder tokenizer.path={report.folder}"]
    return "\n".join(lines)
