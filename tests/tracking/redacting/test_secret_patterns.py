import pytest

from lmtrain.tracking.redacting.secret_patterns import REDACTED, passwords_in, redact_addresses, redact_patterns

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
    "text", ["http://me:${oc.env:PW}@h", "http://${oc.env:TOKEN}@h", "http://h/x?token=${oc.env:T}"]
)
def test_reference_to_a_variable_stays(text):
    assert redact_addresses(text) == text


def test_passwords_of_addresses_are_found():
    assert passwords_in("a http://me:one@h b postgresql://me:t/wo@h:1/x http://h:80/a@b http://user@h")[:1] == ["one"]
    assert set(passwords_in("a http://me:one@h b postgresql://me:t/wo@h:1/x http://h:80/a@b http://user@h")) == {
        "one",
        "t/wo",
    }
