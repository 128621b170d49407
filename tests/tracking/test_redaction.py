"""What redaction takes out of texts and data, and what it leaves."""

import pytest

from lmtrain.tracking.redaction import (
    REDACTED,
    is_secret_key,
    redact,
    redact_addresses,
    redact_override,
    redact_patterns,
    redact_text,
    remember_secrets,
    resolve_references,
    secret_values,
)


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
        "write a key into a file and give --api-key-file FILE.",
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


def test_value_of_the_environment_becomes_its_reference_in_data(variables):
    config = {"a": ["x-canary words 1-y"], "uri": "http://me:canary words 1@h"}
    assert redact(config) == {"a": ["x-${oc.env:DEPLOY_KEY_B}-y"], "uri": "http://me:${oc.env:DEPLOY_KEY_B}@h"}


@pytest.mark.parametrize(
    "word", ["+a.token=canary", "a.uri='http://u:canary@h'", "b=hf_canaryCANARYcanary1", "~canary@x://a:canary@h"]
)
def test_word_of_a_command_line_loses_its_secret(word):
    assert redact_override(word).partition("=")[2] in (REDACTED, f"'http://{REDACTED}@h'", "")
    assert "canary" not in redact_override(word).replace("~canary@x", "")


BODY = "\n".join(["MIIEcanaryIBAAKCAQEAcanary0123456789canaryABCDEFGHIJ"] * 3)
LETTERS = "c4naryCANARYc4nary0123"
SECRETS = {
    "Hugging Face": f"hf_{LETTERS}",
    "AWS": "AKIA" + "CANARY0123456789",
    "AWS for a while": "ASIA" + "CANARY0123456789",
    "AWS with its secret": "AKIA" + "CANARY0123456789" + ", " + "canary/K7MDENG+bPxRfiCYEXAMPLEKEYcanary0"[:40],
    "GitHub": f"ghp_{LETTERS}",
    "GitHub for an app": f"gho_{LETTERS}",
    "GitHub, fine-grained": f"github_pat_{LETTERS}_{LETTERS}",
    "OpenAI": f"sk-proj-{LETTERS}",
    "Anthropic": f"sk-ant-api03-{LETTERS}-{LETTERS}",
    "Slack": "xoxb-" + "123456789-canary",
    "Google": f"AIza{LETTERS}{LETTERS}"[:39],
    "Hugging Face, lower case": "hf_" + "canary" * 5 + "abcd",
    "Slack for an app": f"xapp-1-{LETTERS}",
    "Slack's webhook": f"https://hooks.slack.com/services/T0canary/B0canary/{LETTERS}",
    "Discord": f"MT{LETTERS}.canary.{LETTERS}{LETTERS}",
    "Discord's webhook": f"https://discord.com/api/webhooks/123456789/{LETTERS}{LETTERS}",
    "Stripe": f"sk_live_{LETTERS}",
    "Telegram": f"123456789:AA{LETTERS}{LETTERS}"[:46],
    "Telegram in an address": f"https://api.telegram.org/bot123456789:AA{LETTERS}{LETTERS}"[:74] + "/send",
    "SendGrid": f"SG.{LETTERS}.{LETTERS}{LETTERS}",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{LETTERS}",
    "wandb's new form": f"wandb_v1_{LETTERS}",
    "netrc": "machine api.wandb.ai\n  login user\n  password canary-canary",
    "netrc in a line": "machine h login user password canary",
    "curl": "curl -s -u user:canary-canary https://h/x",
    "cookie": "Cookie: session=canary; other=canary",
    "Azure's account": "DefaultEndpointsProtocol=https;AccountName=n;AccountKey=canaryCANARYcanary==;EndpointSuffix=x",
    "Azure's signature": "https://n.blob.core.windows.net/c/f?sv=2022&sig=canary%2Fcanary%3D",
    "AWS presigned": "https://b.s3.amazonaws.com/k?X-Amz-Credential=canary&X-Amz-Signature=canary0123456789c4",
    "docker": '{"auths": {"ghcr.io": {"auth": "Y2FuYXJ5OmNhbmFyeQ=="}}}',
    "npm": "//r.example.org/:_authToken=canary-canary",
    "API key in a header": "x-api-key: canary-canary",
    "wandb": "WANDB_API_KEY " + "0123456789c4" * 3 + "abcd",
    "wandb's login": "wandb login --relogin " + "0123456789c4" * 3 + "abcd",
    "bearer": "Bearer canary-canary",
    "basic": "Authorization: Basic Y2FuYXJ5OmNhbmFyeQ==",
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJjYW5hcnkiOjF9.canary-canary",
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----",
    "private key in a diff": f"+-----BEGIN PRIVATE KEY-----\n+{BODY}".replace("\nMII", "\n+MII"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_secret_of_a_known_form_goes_and_the_text_around_it_stays(name):
    redacted = redact_patterns(f"before\n{SECRETS[name]}\nafter")
    assert REDACTED in redacted
    assert not any(part in redacted for part in ("anary", "CANARY", "Y2Fu", "0123456789c4"))
    assert redacted.startswith("before\n")
    assert redacted.endswith("\nafter")


@pytest.mark.parametrize(
    "text",
    [
        "83db48f0e3b0c44298fc1c149afbf4c8996fb924",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "hf_export, hf_import_model, hf_tokenizerconfiguration and lmtrain.interop.hf_export",
        "task-adjusted-risk-weighted-loss, sk-learn",
        "eyJ, AIza, AKIA, xox, ghp_ and Bearer are how tokens begin",
        "-----BEGIN PRIVATE KEY----- begins one\n+and this is code of another line\n",
        "authorization = settings.authorization",
        "git+https://host/wandb/wandb.git@0123456789012345678901234567890123456789",
        "c10d endpoint http://localhost:8080/a@b and mail to me@host",
    ],
)
def test_hash_name_or_prose_stays(text):
    assert redact_patterns(text) == text


def test_password_in_an_address_is_cut_out_and_the_rest_stays():
    text = "tracking_uri: postgresql://me:pw@db.host:5432/mlflow?x=1 and https://h/a@b"
    assert redact_addresses(text) == f"tracking_uri: postgresql://{REDACTED}@db.host:5432/mlflow?x=1 and https://h/a@b"


@pytest.mark.parametrize("password", ["canary", "can@ary", "can/ary", "can:ary", "can%40ary", "?canary", "can#ary"])
def test_password_of_any_signs_leaves_nothing_behind(password):
    redacted = redact_addresses(f"http://me:{password}@host/x")
    assert redacted == f"http://{REDACTED}@host/x"


def test_secret_argument_of_an_address_goes_alone():
    text = "postgresql://h/db?user=me&password=canary&sslmode=require"
    assert redact_addresses(text) == f"postgresql://h/db?user=me&password={REDACTED}&sslmode=require"


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


def known():
    return {value for value, _ in secret_values()}


def test_variable_that_a_config_refers_to_is_known_from_then_on(monkeypatch):
    monkeypatch.setenv("A_PLACE", "canary-value-2")
    remember_secrets({"a": ["x-${oc.env:A_PLACE,y}"]}, {"a": ["x-canary-value-2"]})
    assert ("canary-value-2", "A_PLACE") in secret_values()


def test_password_and_key_that_were_typed_are_known(monkeypatch):
    remember_secrets({}, {"uri": "http://me:canary-value-3@h", "api_key": "canary-value-4", "b": ["canary-value-5"]})
    assert {"canary-value-3", "canary-value-4"} <= known()
    assert "canary-value-5" not in known()


def test_references_are_resolved_where_the_variable_is_set(monkeypatch):
    monkeypatch.setenv("A_PLACE", "there")
    value = {"a": ["x-${oc.env:A_PLACE}", 1, None], "b": "${oc.env:NOT_SET_ANYWHERE}"}
    assert resolve_references(value) == {"a": ["x-there", 1, None], "b": "${oc.env:NOT_SET_ANYWHERE}"}
