import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flag_parser import FlagParser


def parser() -> FlagParser:
    found = FlagParser(prog="lmtrain make")
    found.add_argument("--num-new-tokens", type=int)
    found.add_argument("--json", action="store_true")
    found.add_argument("--dtype", choices=("fp32", "bf16"))
    part = found.add_subparsers(required=True, dest="kind", metavar="hf|gguf").add_parser("hf")
    part.add_argument("source")
    part.add_argument("--weights")
    return found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hf a --jsno", "--jsno: there is no such flag. Did you mean '--json'? `lmtrain make --help` lists the flags."),
        ("hf a --tokens 3", "--tokens: there is no such flag. Did you mean '--num-new-tokens'?"),
        ("hf a --wieghts x", "--wieghts: there is no such flag. Did you mean '--weights'?"),
        ("hf a --quite-another", "--quite-another: there is no such flag. `lmtrain make --help`"),
        ("hf a b", "b is one word too many for lmtrain make."),
        ("", "lmtrain make lacks hf or gguf. `lmtrain make --help` lists the flags."),
        ("hf", "lmtrain make hf lacks SOURCE. `lmtrain make hf --help` lists the flags."),
        ("--num-new-tokens", "--num-new-tokens has no value; write --num-new-tokens VALUE."),
        ("--num-new-tokens many hf a", "--num-new-tokens=many is no whole number."),
        ("--json=1 hf a", "--json has no value; write --json."),
        ("--dtype fp8 hf a", "--dtype: invalid choice: 'fp8' (choose from 'fp32', 'bf16')."),
        ("gpuf a", "lmtrain make: gpuf is none of hf. Write lmtrain make hf SOURCE."),
    ],
)
def test_a_wrong_word_is_one_line_with_the_nearest_flag(words: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parser().parse_args(words.split())
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_words_of_others_pass_but_for_nearly_a_flag_of_this_parser() -> None:
    found = FlagParser(prog="lmtrain tune lr", add_help=False, allow_abbrev=False)
    found.add_argument("--steps", type=int)
    asked, others = found.taken(["--steps=3", "optimizer.lr=1", "--config-dir", "mine"])
    assert (asked.steps, others) == (3, ["optimizer.lr=1", "--config-dir", "mine"])
    with pytest.raises(ConfigurationError, match=r"--setps: there is no such flag\. Did you mean '--steps'"):
        found.taken(["--setps", "5"])
