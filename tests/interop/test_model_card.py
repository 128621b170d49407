from dataclasses import replace

from lmtrain.interop.model_card import CardFacts, model_card

FACTS = CardFacts(
    name="cat", num_parameters=1_234, num_active_parameters=1_234, context_tokens=64,
    step=10, tokens=2_560, data_name="stdlib", data_fingerprint="abc", metrics={"validation/bits_per_byte": 1.23456},
)  # fmt: skip


def test_the_facts_of_a_run_are_told():
    card = model_card(FACTS, architecture="Qwen3ForCausalLM", dtype="float32")
    for line in (
        "# cat",
        "| architecture | Qwen3ForCausalLM |",
        "| parameters | 1,234 |",
        "| trained here on | 2,560 tokens, 10 optimizer steps |",
        "| data fingerprint | `abc` |",
        "| validation/bits_per_byte | 1.2346 |",
    ):
        assert line in card.splitlines()
    assert "Licence: unknown" in card
    assert "of which a token meets" not in card
    assert "these weights" not in card


def test_averaged_weights_have_their_own_scores_or_none():
    facts = replace(FACTS, is_averaged=True, metrics={})
    lines = model_card(facts, architecture="X", dtype="float32").splitlines()
    assert "| weights | the moving average of the training's |" in lines
    assert "| held-out text | not scored with these weights |" in lines


def test_what_nobody_knows_is_called_unknown():
    facts = CardFacts(name="a", num_parameters=5, num_active_parameters=3, context_tokens=8, imported_from="qwen3")
    lines = model_card(facts, architecture="X", dtype="bfloat16").splitlines()
    assert "| data | unknown |" in lines
    assert "| trained here on | nothing: imported weights as they were |" in lines
    assert "| of which a token meets | 3 |" in lines
    assert "| weights began as | qwen3 |" in lines
