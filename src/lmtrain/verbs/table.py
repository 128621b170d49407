"""Every verb of `lmtrain`, by name."""

from typing import Final

# verb -> its function, and its line in `lmtrain --help`; imported only when asked for
VERBS: Final = {
    "train": ("lmtrain.verbs.train:train", "train a model, or one a value with -m"),
    "plan": ("lmtrain.verbs.plan:plan", "what a training config will need, take and cost; no GPU needed"),
    "launch": (
        "lmtrain.verbs.launch:launch",
        "start a run on several nodes: slurm, torchrun, k8s, sky",
    ),
    "simulate": (
        "lmtrain.verbs.simulate:simulate",
        "one rank's real step in a fleet of any size: memory, messages, time",
    ),
    "calc": ("lmtrain.verbs.calc:calc", "bytes of a tensor; FLOPs and time of a matrix product, by device"),
    "doctor": (
        "lmtrain.verbs.doctor:doctor",
        "check this machine before a long run, and measure it",
    ),
    "bench": (
        "lmtrain.verbs.bench:bench",
        "time a step by part, name the bottleneck and what would help",
    ),
    "tune": ("lmtrain.verbs.tune:tune", "find a learning rate (lr) or the largest micro batch (batch)"),
    "parity": (
        "lmtrain.verbs.parity:parity",
        "hold a strategy on CPU ranks to one process, tensor by tensor",
    ),
    "prepare": ("lmtrain.verbs.prepare:prepare", "turn text into tokenized shards"),
    "verify": ("lmtrain.verbs.verify:verify", "hold every byte of prepared data against its manifest"),
    "data": ("lmtrain.verbs.data:data", "show the text of a run's past step, with losses"),
    "tokenizer": (
        "lmtrain.verbs.tokenizer:make",
        "learn a tokenizer or take one, and compare it with others",
    ),
    "generate": ("lmtrain.verbs.generate:generate", "continue a text with a run's newest checkpoint"),
    "chat": ("lmtrain.verbs.chat:chat", "converse with a model in the terminal"),
    "serve": ("lmtrain.verbs.serve:serve", "serve a model: OpenAI's API, and a chat page"),
    "evaluate": (
        "lmtrain.verbs.evaluate:evaluate",
        "score a model: bits per byte, CORE, chat tasks, lm-eval",
    ),
    "pipeline": (
        "lmtrain.verbs.pipeline:pipeline",
        "from text to a model to talk to, with a report card",
    ),
    "export": (
        "lmtrain.verbs.export:export",
        "give a model to others: hf (also vLLM), gguf, peft",
    ),
    "import": ("lmtrain.verbs.import_hf:import_model", "take a model of transformers or an adapter of PEFT: hf, peft"),
    "push": ("lmtrain.verbs.push:push", "send a run to the Hugging Face Hub: its model, or all of it"),
    "ls": ("lmtrain.verbs.ls:ls", "list all runs with their state, step, loss and validation"),
    "show": ("lmtrain.verbs.show:show", "show a run: its state, results, files, what is next"),
    "tail": ("lmtrain.verbs.tail:tail", "print a run's newest steps, and follow it"),
    "diff": ("lmtrain.verbs.diff:diff", "print what two runs differ in"),
    "stop": ("lmtrain.verbs.stop:stop", "stop runs after their step, each with a checkpoint"),
    "ledger": ("lmtrain.verbs.ledger:ledger", "show where every second of a run went, also while it runs"),
    "report": ("lmtrain.verbs.report:report", "write a run as one HTML file, with curves"),
    "compare": (
        "lmtrain.verbs.compare:compare",
        "set runs side by side, with the noise of their seeds",
    ),
    "scaling": ("lmtrain.verbs.scaling:scaling", "fit a scaling law to a sweep, and predict a larger run"),
    "ui": ("lmtrain.verbs.ui:ui", "open MLflow on the runs of this project"),
    "sync": ("lmtrain.verbs.sync:sync", "send a run's metrics to MLflow, each point once"),
    "completion": ("lmtrain.verbs.completion:completion", "print a shell's script of Tab completion"),
}
