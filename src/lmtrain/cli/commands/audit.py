"""`lmtrain audit RUN|OVERRIDES`: the FLOPs of one real step three ways, and the MFU by each convention."""

from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import parse_quantity
from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.run.compose.arguments import flags_parser

END: Final = """\
lmtrain audit runs/NAME                 the newest step of a run, with its speed
lmtrain audit model=llama_tiny --tokens-per-second 41K --device "NVIDIA L4"

Needs no GPU and no weights. Ends with 1 where a reported MFU is above 100%."""


def audit(words: list[str], *, program: str = "lmtrain audit") -> int:
    """Print the audit of a run's step, or of a config's first one; answer 1 where its MFU is impossible."""
    parser = run_parser("audit", program, end=END)
    parser.add_argument("--step", type=int, metavar="N", help="of a run, from 1 (the newest)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of a run, if its data has moved")
    parser.add_argument("--tokens-per-second", metavar="X", help="of all devices, those without loss too")
    parser.add_argument("--device", metavar="NAME", help="of the hardware table, for its peak")
    asked, others = parser.taken(words)
    per_second = asked.tokens_per_second and float(parse_quantity(asked.tokens_per_second, "--tokens-per-second"))
    if per_second is not None and per_second <= 0:
        raise ConfigurationError(f"--tokens-per-second: must be above 0, got {asked.tokens_per_second}.")
    from lmtrain.report.plans.audit_page import page
    from lmtrain.report.show import show
    from lmtrain.run.planning.flop_audits import AskedPace, audit_run, audit_words

    pace = AskedPace(tokens_per_second=per_second, device=asked.device)
    if others and "=" not in others[0] and not others[0].startswith("-"):
        allowed = flags_parser(program).parse_args(others[1:]).allowed_targets
        found = iter([audit_run(Path(others[0]), asked=pace, step=asked.step, data=asked.data, allowed=allowed)])
    elif asked.step or asked.data:
        raise ConfigurationError("--step and --data are of a run; name one first, as runs/NAME.")
    else:
        found = audit_words(others, asked=pace)
    is_possible = True
    for title, each in found:
        is_possible &= each.is_possible
        if asked.json:
            print_json({"title": title, **each.to_json()})
        else:
            show(page(each, title=title))
    return EXIT_DONE if is_possible else EXIT_NO
