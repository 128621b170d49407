"""Every loop that can take part: the file it is in, what architecture it trains, and how it is set."""

from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.harness.train_step.task import Architecture


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop of the table; `settings` go to the file's `run` after the task and the turns."""

    title: str
    module: str  # a file of benchmarks/peers/train_step
    architecture: Architecture = "llama"
    is_ours: bool = False
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    more_given: str = ""

    @property
    def given_suffix(self) -> str:
        """Return what follows on the file's own account of what the loop was given."""
        return f"; {self.more_given}" if self.more_given else ""


def _ours(title: str, module: str, architecture: Architecture) -> Loop:
    styles = {"llama": "", "gpt2": "model=gpt2, as nanoGPT's", "nano": "nano's options, as nanochat's"}
    settings = {"architecture": architecture}
    return Loop(
        title=title, module=module, architecture=architecture, is_ours=True, settings=settings,
        more_given=styles[architecture],
    )  # fmt: skip


LOOPS: Final[dict[str, Loop]] = {
    "bare": _ours("our bare loop", "bare", "llama"),
    "trainer": _ours("our full Trainer", "trainer", "llama"),
    "lightning": Loop(title="plain Lightning", module="lightning"),
    "litgpt": Loop(title="litgpt", module="litgpt"),
    "hugging_face": Loop(title="Hugging Face Trainer", module="hugging_face"),
    "hugging_face_liger": Loop(
        title="Hugging Face Trainer with Liger",
        module="hugging_face",
        settings={"with_liger": True},
        more_given="use_liger_kernel",
    ),
    "olmo_core": Loop(title="OLMo-core", module="olmo_core"),
    "torchtitan": Loop(title="torchtitan", module="torchtitan"),
    "bare_gpt2": _ours("our bare loop", "bare", "gpt2"),
    "trainer_gpt2": _ours("our full Trainer", "trainer", "gpt2"),
    "nanogpt": Loop(title="nanoGPT", module="nanogpt", architecture="gpt2"),
    "bare_nano": _ours("our bare loop", "bare", "nano"),
    "trainer_nano": _ours("our full Trainer", "trainer", "nano"),
    "nanochat": Loop(title="nanochat", module="nanochat", architecture="nano"),
}


def architecture_of(name: str) -> Architecture:
    """Return what a loop trains; a loop that is not in the table, a Llama."""
    return LOOPS[name].architecture if name in LOOPS else "llama"


def counterpart(name: str, kind: str) -> str:
    """Return the name of our own loop of a kind that trains what another loop trains."""
    architecture = architecture_of(name)
    return kind if architecture == "llama" else f"{kind}_{architecture}"
