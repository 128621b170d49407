import pytest

from lmtrain.tracking.redaction import REDACTED, is_secret_key, redact, redact_addresses, redact_text


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "HF_TOKEN",
        "logger.api_key",
        "apiKey",
        "AWS_SECRET_ACCESS_KEY",
        "password",
        "db-passwd",
        "credentials",
        "authToken",
        "client_secret",
        "aws_access_key_id",
        "key",
        "wandb_key",
        "a.b.access_token",
    ],
)
def test_key_of_a_secret_is_recognised(key):
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "tokens",
        "tokenizer",
        "tokens_per_step",
        "budget.tokens",
        "train_tokens",
        "bytes_per_token",
        "bos_token",
        "pad_token",
        "num_key_value_heads",
        "key_smear",
        "end_of_text_token",
        "monkey",
        "text_key",
        "lr",
    ],
)
def test_word_of_language_modelling_is_no_secret(key):
    assert not is_secret_key(key)


def test_password_in_an_address_is_cut_out_and_the_rest_stays():
    text = "tracking_uri: postgresql://me:pw@db.host:5432/mlflow?x=1 and https://h/a@b"
    assert redact_addresses(text) == f"tracking_uri: postgresql://{REDACTED}@db.host:5432/mlflow?x=1 and https://h/a@b"


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
    "line", ["tokens: 20M", "num_tokens=5", "tokenizer: bpe", "password: null", "token: ${oc.env:T}"]
)
def test_harmless_line_of_text_stays_as_it_is(line):
    assert redact_text(line) == line
