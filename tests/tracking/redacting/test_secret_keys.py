import pytest

from lmtrain.tracking.redacting.secret_keys import is_certain_key, is_secret_key, is_secret_variable


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


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "TOKEN_OF_BOT", "SSH_KEY_2", "DB_PASS", "MYSQL_PWD", "CREDENTIALS", "API_SECRET"]
)
def test_variable_of_a_secret_is_recognised(name):
    assert is_secret_variable(name)


@pytest.mark.parametrize("name", ["PATH", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD", "BYPASS", "PAD_TOKEN"])
def test_other_variable_is_none(name):
    assert not is_secret_variable(name)


def test_name_that_code_gives_to_anything_is_not_certain():
    assert [name for name in ("key", "token", "cache_key", "api_key", "password") if is_certain_key(name)] == [
        "api_key",
        "password",
    ]
