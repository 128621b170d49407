"""Which rules keep secrets out of a run's files: ours, or detect-secrets'?

A secret is caught where none of it stays in the text; harmless text should stay as it is. Needs `pip install
detect-secrets` in a separate environment:

    PYTHONPATH=src SCRATCH/bin/python benchmarks/questions/redaction.py
"""

import base64
import random
import string
from collections.abc import Callable

from lmtrain.tracking.redaction import redact_text

ALPHANUMERIC, HEX, DIGITS = string.ascii_letters + string.digits, "0123456789abcdef", string.digits
LOWER, UPPER = string.ascii_lowercase, string.ascii_uppercase + DIGITS
BASE64 = ALPHANUMERIC + "+/"
draws = random.Random(0)


def chars(alphabet: str, length: int) -> str:
    """Draw characters."""
    return "".join(draws.choice(alphabet) for _ in range(length))


def basic() -> str:
    """Draw a user and a password as HTTP and Docker write them."""
    return base64.b64encode(f"me:{chars(ALPHANUMERIC, 18)}".encode()).decode()


# name: (text with {} in the secret's place, secret)
SECRETS: dict[str, tuple[str, str]] = {
    "netrc": ("machine api.wandb.ai\n  login user\n  password {}", chars(HEX, 40)),
    "netrc, one line": ("machine h.example.org login me password {}", chars(ALPHANUMERIC, 12)),
    "curl -u": ("curl -s -u me:{} https://h.example.org/x", chars(ALPHANUMERIC, 14)),
    "curl --user": ("curl --user 'me:{}' https://h.example.org/x", chars(ALPHANUMERIC, 14)),
    "Cookie": ("Cookie: session={}", chars(ALPHANUMERIC, 32)),
    "Set-Cookie": ("Set-Cookie: sid={}; HttpOnly", chars(HEX, 32)),
    "Azure account": ("AccountName=n;AccountKey={};EndpointSuffix=core.windows.net", chars(BASE64, 86) + "=="),
    "Azure SAS": ("https://n.blob.core.windows.net/c/f?sv=2022-11-02&sig={}", chars(ALPHANUMERIC, 43) + "%3D"),
    "Azure service bus": ("SharedAccessKeyName=root;SharedAccessKey={}", chars(BASE64, 43) + "="),
    "AWS key": ("aws_access_key_id = {}", "AKIA" + chars(UPPER, 16)),
    "AWS secret": ("aws_secret_access_key = {}", chars(BASE64, 40)),
    "AWS presigned": ("https://b.s3.amazonaws.com/k?X-Amz-Expires=9&X-Amz-Signature={}", chars(HEX, 64)),
    "AWS session token": ("https://b.s3.amazonaws.com/k?X-Amz-Security-Token={}", chars(ALPHANUMERIC, 200)),
    "Docker auth": ('{{"auths": {{"ghcr.io": {{"auth": "{}"}}}}}}', basic()),
    "Docker identity token": ('{{"auths": {{"h": {{"identitytoken": "{}"}}}}}}', chars(ALPHANUMERIC, 60)),
    "PyPI": ("pip upload with {}", "pypi-AgEIcHlwaS5vcmc" + chars(ALPHANUMERIC, 120)),
    "Slack": ("slack said {}", f"xoxb-{chars(DIGITS, 12)}-{chars(DIGITS, 13)}-{chars(ALPHANUMERIC, 24)}"),
    "Slack webhook": (
        "https://hooks.slack.com/services/{}",
        f"T{chars(UPPER, 8)}/B{chars(UPPER, 10)}/{chars(ALPHANUMERIC, 24)}",
    ),
    "Discord bot": ("discord {}", f"MT{chars(ALPHANUMERIC, 24)}.{chars(ALPHANUMERIC, 6)}.{chars(ALPHANUMERIC, 38)}"),
    "Discord webhook": ("https://discord.com/api/webhooks/1234567890/{}", chars(ALPHANUMERIC, 68)),
    "Stripe": ("stripe {}", "sk_live_" + chars(ALPHANUMERIC, 24)),
    "Stripe restricted": ("stripe {}", "rk_live_" + chars(ALPHANUMERIC, 24)),
    "Telegram": ("bot {}", f"{chars('123456789', 10)}:AA{chars(ALPHANUMERIC, 33)}"),
    "Telegram in an address": (
        "https://api.telegram.org/bot{}/send",
        f"{chars('123456789', 10)}:AA{chars(ALPHANUMERIC, 33)}",
    ),
    "SendGrid": ("mail {}", f"SG.{chars(ALPHANUMERIC, 22)}.{chars(ALPHANUMERIC, 43)}"),
    "wandb variable": ("export WANDB_API_KEY={}", chars(HEX, 40)),
    "wandb login": ("wandb login {}", chars(HEX, 40)),
    "Hugging Face": ("huggingface says {}", "hf_" + chars(ALPHANUMERIC, 34)),
    "Hugging Face, lower case": ("huggingface says {}", "hf_" + chars(LOWER, 34)),
    "GitHub": ("cloned with {}", "ghp_" + chars(ALPHANUMERIC, 36)),
    "GitHub fine-grained": ("cloned with {}", f"github_pat_{chars(ALPHANUMERIC, 22)}_{chars(ALPHANUMERIC, 59)}"),
    "GitLab": ("cloned with {}", "glpat-" + chars(ALPHANUMERIC, 20)),
    "OpenAI": ("asked with {}", f"sk-proj-{chars(ALPHANUMERIC, 60)}"),
    "Anthropic": ("asked with {}", f"sk-ant-api03-{chars(ALPHANUMERIC, 90)}AA"),
    "Google": ("maps {}", "AIza" + chars(ALPHANUMERIC, 35)),
    "npm": ("//npm.example.org/:_authToken={}", f"npm_{chars(ALPHANUMERIC, 36)}"),
    "JSON Web Token": ("got {}", f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{chars(ALPHANUMERIC, 43)}"),
    "Bearer": ("curl -H 'Authorization: Bearer {}' https://h", chars(ALPHANUMERIC, 32)),
    "Basic": ("Authorization: Basic {}", basic()),
    "Password in an address": ("postgresql://me:{}@db.example.org/runs", chars(ALPHANUMERIC, 16)),
    "Password assigned": ('password = "{}"', chars(ALPHANUMERIC, 16)),
    "Password in YAML": ("db:\n  password: {}", chars(ALPHANUMERIC, 16)),
    "Option of a command": ("train --api-key {} --lr 1", chars(ALPHANUMERIC, 20)),
    "Private key": ("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", chars(BASE64, 64)),
}
HARMLESS = [
    "optimizer.lr=3e-4 batch.tokens_per_step=524288 budget.tokens=20B",
    "bos_token: <|begin_of_text|>", "eos_token='</s>'", "pad_token_id: 0", "tokenizer: bpe", "num_tokens=5",
    "tokens_per_second 18234.5", "max_tokens: 512", "token_budget: {_target_: lmtrain.callbacks.TokenBudget}",
    "password: null", "token: ${oc.env:HF_TOKEN}", "hf_token = os.environ['HF_TOKEN']", "password = getpass.getpass()",
    "def login(password: str | None = None) -> None:", "    key = name.rpartition('.')[2]", "sort_key: loss",
    "for token in tokens: print(token)", 'require(value, key="callbacks.validation")', "text_key: content",
    "commit 83db48f0e3b0c44298fc1c149afbf4c8996fb924", "index 83db48f..bf269f4 100644", "@@ -1,7 +1,7 @@ def main():",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "cache_key = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'",
    '"fingerprint": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"',
    "git+https://host/wandb/wandb.git@0123456789012345678901234567890123456789",
    "mlflow run 17645ccf5aa64547b1d721c59fdd416a",
    "--hash=sha256:2cc3a1ce5aa9b4b5a9e6a3b8c7cd1a4ec1e4d1b7a6d9c0b6a2c7e4f1a0b3c5d7", "torch==2.13.0+cu130",
    "http://localhost:8080/a", "mail me@example.org", "s3://bucket/run/checkpoints/step_00000100",
    "run: glad-otter-1128-041523", "GPU-5a3c1f2e-7b4d-4c1a-9e8f-0a1b2c3d4e5f", "NCCL_SOCKET_IFNAME=eth0",
    "module lmtrain.interop.hf_export", "class HuggingFaceTokenizerConfiguration:", "sk-learn and task-adjusted-loss",
    '"text": "The secret garden was open, and the password was forgotten."', "A key result: 3.21 bits per byte",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "[2026-11-29 11:43:10] step 4/4 loss 6.399",
]  # fmt: skip


def detect_secrets(text: str) -> str:
    """Return a text without the secrets that detect-secrets' default plugins and filters find."""
    import tempfile
    from pathlib import Path

    from detect_secrets import SecretsCollection  # pyright: ignore[reportMissingImports]
    from detect_secrets.settings import default_settings  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder, default_settings():
        path = Path(folder) / "text.txt"
        path.write_text(text)
        found = SecretsCollection()
        found.scan_file(str(path))
        for _, secret in found:
            text = text.replace(secret.secret_value or "\0", "[redacted]")
    return text


def main() -> None:
    """Print the counts, and each miss."""
    rules: dict[str, Callable[[str], str]] = {"ours": redact_text, "detect-secrets": detect_secrets}
    for name, rule in rules.items():
        missed = [form for form, (text, secret) in SECRETS.items() if secret in rule(text.format(secret))]
        changed = [text for text in HARMLESS if rule(text) != text]
        print(f"{name}: {len(SECRETS) - len(missed)} of {len(SECRETS)} secrets caught,", end=" ")
        print(f"{len(changed)} of {len(HARMLESS)} harmless texts changed")
        print("\n".join([*(f"  missed {form}" for form in missed), *(f"  changed {text}" for text in changed)]))


if __name__ == "__main__":
    main()
