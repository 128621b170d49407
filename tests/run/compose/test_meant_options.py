import pytest

from lmtrain.run.compose.meant_options import CALLED_OPTIONS, amount_meant, option_meant, options_meant
from lmtrain.run.compose.paths import conf_folder

KNOWN = ("bf16_mixed", "bf16_residual", "fp32", "none")


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("BF16-mixed", "bf16_mixed"),
        ("bfloat16", "bf16_mixed"),
        ("32-true", "fp32"),
        ("residual", "bf16_residual"),
        ("fp32_mine", "fp32"),
    ],
)
def test_an_option_is_found_by_spelling_name_elsewhere_or_a_word_of_its_own(option: str, meant: str) -> None:
    assert option_meant("precision", option, KNOWN) == meant


def test_a_word_of_several_options_chooses_none_of_them() -> None:
    assert options_meant("loss", "bf16", KNOWN) == ["bf16_mixed", "bf16_residual"]
    assert option_meant("loss", "bf16", KNOWN) is None
    assert option_meant("loss", "off", KNOWN) == "none"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("llama_7b", ["llama_2_7b"]),
        ("Llama-70B", ["llama_3_1_70b", "llama_3_70b"]),
        ("llama_3_1_405b", ["llama_3_405b"]),
        ("qwen_7b", []),
    ],
)
def test_a_size_of_a_family_is_found_without_its_version(word: str, meant: list[str]) -> None:
    known = ("llama_2_7b", "llama_3_1_70b", "llama_3_70b", "llama_3_405b", "llama_tiny", "nano")
    assert options_meant("model", word, known) == meant


def test_an_amount_is_a_key_of_the_budget_alone() -> None:
    assert (amount_meant("budget", "2h"), amount_meant("model", "2")) == ("budget.hours=2h", None)


def test_a_mistyped_letter_comes_before_a_shorter_name() -> None:
    known = ("llama_tiny", "llama_3_1_8b", "tokens", "tokens_per_parameter")
    assert options_meant("model", "llama_3_1_8", known) == ["llama_3_1_8b"]
    assert options_meant("model", "llama_31_8b", known) == ["llama_3_1_8b"]
    assert options_meant("budget", "tokens_per_paramteer", known) == ["tokens_per_parameter"]


def test_what_others_call_an_option_is_none_of_ours_and_leads_to_one() -> None:
    for group, called in CALLED_OPTIONS.items():
        ours = {path.stem for path in (conf_folder() / group).glob("*.yaml")}
        assert not ours & {*called}
        assert {name for names in called.values() for name in names} <= ours
