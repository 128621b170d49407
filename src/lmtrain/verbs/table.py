"""Every verb of `lmtrain`, by name."""

from typing import Final

# verb -> the function that serves it, and the line that `lmtrain --help` prints; imported only when asked for
VERBS: Final = {
    "train": ("lmtrain.verbs.train:train", "train a model, or one a value with -m"),
    "plan": ("lmtrain.verbs.plan:plan", "what a training config will need, take and cost; no GPU needed"),
    "calc": ("lmtrain.verbs.calc:calc", "bytes of a tensor; FLOPs and time of a matrix product, by device"),
    "doctor": (
        "lmtrain.verbs.doctor:doctor",
        "check this machine before a long run, and measure it",
    ),
    "bench": (
        "lmtrain.verbs.bench:bench",
        "time a step by part, name the bottleneck and what would help",
    ),
    "prepare": ("lmtrain.verbs.prepare:prepare", "turn text into tokenized shards"),
    "verify": ("data_pipelines.verify:verify", "hold every byte of prepared data against its manifest"),
    "tokenizer": (
        "lmtrain.verbs.tokenizer:make",
        "learn a tokenizer or take one, and compare it with others",
    ),
    "generate": ("lmtrain.verbs.generate:generate", "continue a text with a run's newest checkpoint"),
    "chat": ("lmtrain.verbs.chat:chat", "converse with a model in the terminal"),
    "serve": ("lmtrain.verbs.serve:serve", "serve a model: OpenAI's API, and a chat page"),
    "export": (
        "lmtrain.verbs.export:export",
        "give a model to transformers, vLLM or llama.cpp: hf, gguf",
    ),
    "import": ("lmtrain.verbs.import_hf:import_model", "take a model of transformers, to train on from: hf"),
    "ledger": ("lmtrain.verbs.ledger:ledger", "show where every second of a run went, also while it runs"),
    "report": ("lmtrain.verbs.report:report", "write a run as one HTML file, with curves"),
    "compare": (
        "lmtrain.verbs.compare:compare",
        "set runs side by side, with the noise of their seeds",
    ),
    "ui": ("lmtrain.verbs.ui:ui", "open MLflow on the runs of this project"),
    "sync": ("lmtrain.verbs.sync:sync", "send a run's metrics to MLflow, each point once"),
    "completion": ("lmtrain.verbs.completion:completion", "print the shell's script of Tab completion: bash"),
}
