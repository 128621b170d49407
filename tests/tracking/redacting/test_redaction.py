import io

import pytest

from lmtrain.tracking.redacting.redaction import RedactedStream, redact, redact_override, redact_text
from lmtrain.tracking.redacting.secret_patterns import REDACTED


def test_nested_data_loses_its_secrets_only():
    logger = {"api_key": "abc", "uri": "http://u:p@h"}
    config = {"logger": logger, "budget": {"tokens": "20M"}, "keys": ["a"]}
    assert redact(config) == {
        "logger": {"api_key": REDACTED, "uri": f"http://{REDACTED}@h"},
        "budget": {"tokens": "20M"},
        "keys": ["a"],
    }
    assert logger["api_key"] == "abc"


def test_number_flag_and_interpolation_under_a_secret_key_stay():
    config = {"token": 5, "key": None, "password": "${oc.env:PASSWORD}", "api_key": ""}
    assert redact(config) == config


@pytest.mark.parametrize(
    "line",
    [
        "password: canary",
        "password: 'canary words'",
        'password: "canary \\" words"',
        "password: canary words",
        "+hf_token=canary",
        "logger: {password: canary, a: 1}",
        '+  "api_key": "canary",',
        "logger.api_key=canary",
        "secret = canary",
        "uri: sqlite://u:canary@h/x",
        "-password: canary",
        "train --api-key canary --lr 1",
        "train --hf-token=canary",
        "os.environ['API_KEY'] = 'canary'",
        "token = 'canary5Q8rT2yU4iO6pA'",
    ],
)
def test_line_of_text_loses_its_secret(line):
    text = f"before: 1\n{line}\nafter: 2\n"
    redacted = redact_text(text)
    assert "canary" not in redacted
    assert REDACTED in redacted
    assert redacted.startswith("before: 1\n")
    assert redacted.endswith("\nafter: 2\n")


@pytest.mark.parametrize(
    "line",
    [
        "tokens: 20M",
        "num_tokens=5",
        "tokenizer: bpe",
        "password: null",
        "token: ${oc.env:T}",
        "batch.tokens_per_step=256 --num-new-tokens 200",
        "  token_budget: {_target_: lmtrain.callbacks.token_budget.TokenBudget}",
        "+    key = name.rpartition('.')[2]",
        "+def redact(value: object, key: str = '') -> object:",
        "-    for token in tokens: token = tokenizer.decode([token])",
        '+    require(value, key="callbacks.validation")',
        "+    password = getpass.getpass()",
        "+    password: str | None = None,",
        "+    hf_token = os.environ['HF_TOKEN']",
        "+sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "+cache_key = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'",
        "index 83db48f..bf269f4 100644",
        "@@ -1,7 +1,7 @@ def main() -> int:",
    ],
)
def test_harmless_line_of_text_stays_as_it_is(line):
    assert redact_text(line) == line


@pytest.fixture
def variables(monkeypatch):
    monkeypatch.setenv("DEPLOY_KEY_B", "canary words 1")
    monkeypatch.setenv("PLACE", "postgresql://me:canary%2F2b@db")


def test_value_of_the_environment_is_cut_out_of_text(variables):
    text = "failed for canary words 1, canary%20words%201, canary%2F2b and canary/2b; other words 1"
    assert redact_text(text) == "failed for [redacted], [redacted], [redacted] and [redacted]; other words 1"


def test_value_of_the_environment_becomes_its_reference_in_data(variables):
    config = {"a": ["x-canary words 1-y"], "uri": "http://me:canary words 1@h"}
    assert redact(config) == {"a": ["x-${oc.env:DEPLOY_KEY_B}-y"], "uri": "http://me:${oc.env:DEPLOY_KEY_B}@h"}


@pytest.mark.parametrize(
    "word", ["+a.token=canary", "a.uri='http://u:canary@h'", "b=hf_canaryCANARYcanary1", "~canary@x://a:canary@h"]
)
def test_word_of_a_command_line_loses_its_secret(word):
    assert redact_override(word).partition("=")[2] in (REDACTED, f"'http://{REDACTED}@h'", "")
    assert "canary" not in redact_override(word).replace("~canary@x", "")


def test_words_of_a_command_line_stay():
    for word in ("seed=1", "data=fineweb", "budget.tokens=2M", "a.b='x=y'", "~callbacks.validation", "a=${oc.env:X}"):
        assert redact_override(word) == word


def test_redacted_data_is_redacted_once():
    once = redact({"password": "canary", "uri": "http://u:p@h"})
    assert redact(once) == once
    assert redact_text(redact_text("password: canary\n'b': http://u:p@h")) == redact_text(
        "password: canary\n'b': http://u:p@h"
    )


def test_stream_takes_no_secret_and_is_otherwise_the_one_below():
    below = io.StringIO()
    stream = RedactedStream(below)
    assert print("http://me:canary@h", file=stream) is None
    assert below.getvalue() == f"http://{REDACTED}@h\n"
    assert stream.getvalue() == below.getvalue()
