"""Verbs of other programs, each with the command here."""

from collections.abc import Mapping
from typing import Final

TUNED: Final = (
    "`lmtrain train init_from=RUN task=sft`, and adapter=lora for a few weights alone; RUN may be an imported folder"
)
IMPORTED: Final = "`lmtrain import hf base runs/base`"
CALLED_VERBS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("finetune", "fine-tune", "fine_tune", "sft", "lora", "finetune_lora", "finetune_full"), TUNED),
    "pretrain": "`lmtrain train`",
    "resume": "the same `lmtrain train` command again, which goes on with its run",
    "sweep": "`lmtrain train -m KEY=A,B`, or `lmtrain train -m 'KEY=interval(LOW,HIGH)'` for a search",
    **dict.fromkeys(("estimate", "estimate-memory", "memory"), "`lmtrain plan`"),
    **dict.fromkeys(("sample", "inference", "infer", "complete"), "`lmtrain generate RUN`"),
    "convert": f"`lmtrain export hf RUN FOLDER` to give a model to others, {IMPORTED} to take theirs",
    "merge": "`lmtrain export hf RUN FOLDER`, which adds an adapter to its base",
    "download": f"`hf download OWNER/NAME --local-dir base`, then {IMPORTED}",
    **dict.fromkeys(("rm", "delete", "remove"), "`rm -r runs/NAME`; its metrics in MLflow stay"),
    "dpo": "`lmtrain train task=dpo init_from=RUN 'source.paths=[pairs.jsonl]'`",
    **dict.fromkeys(("grpo", "ppo", "rl"), "`lmtrain train task=grpo init_from=RUN`"),
}
