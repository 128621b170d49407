"""Every loop that can take part, by the name of its file."""

from typing import Final

LOOPS: Final = {
    "bare": "our bare loop",
    "trainer": "our full Trainer",
    "lightning": "plain Lightning",
    "nanogpt": "nanoGPT",
    "litgpt": "litgpt",
    "hugging_face": "Hugging Face Trainer",
    "nanochat": "nanochat",
    "olmo_core": "OLMo-core",
    "torchtitan": "torchtitan",
}
