"""Every verb of `lmtrain`, by name."""

from typing import Final

# verb -> its function, and its line in `lmtrain --help`; imported only when asked for
VERBS: Final = {
    "train": ("lmtrain.cli.commands.train:train", "train a model; with -m one per value"),
    "plan": ("lmtrain.cli.commands.plan:plan", "memory, time and cost of a training config; no GPU needed"),
    "launch": (
        "lmtrain.cli.commands.launch:launch",
        "start a run on several nodes: slurm, torchrun, k8s, sky",
    ),
    "simulate": (
        "lmtrain.cli.commands.simulate:simulate",
        "one rank's real step in a fleet of any size: memory, messages, time",
    ),
    "calc": ("lmtrain.cli.commands.calc:calc", "bytes of a tensor; FLOPs and time of a matrix product, by device"),
    "doctor": (
        "lmtrain.cli.commands.doctor:doctor",
        "check this machine before a long run, and measure it",
    ),
    "bench": (
        "lmtrain.cli.commands.bench:bench",
        "time a step by part, name the bottleneck and what would help",
    ),
    "tune": ("lmtrain.cli.commands.tune:tune", "find a learning rate (lr) or the largest micro batch (batch)"),
    "parity": (
        "lmtrain.cli.commands.parity:parity",
        "compare a strategy on CPU ranks with one process, tensor by tensor",
    ),
    "prepare": ("lmtrain.cli.commands.prepare:prepare", "turn text into tokenized shards"),
    "verify": ("lmtrain.cli.commands.prepare:verify", "verify the checksums of prepared data"),
    "data": ("lmtrain.cli.commands.data:data", "show the text of a run's past step, with losses"),
    "tokenizer": (
        "lmtrain.cli.commands.prepare:tokenizer",
        "learn a tokenizer or take one, and compare it with others",
    ),
    "generate": ("lmtrain.cli.commands.generate:generate", "continue a text with a run's newest checkpoint"),
    "chat": ("lmtrain.cli.commands.chat:chat", "converse with a model in the terminal"),
    "serve": ("lmtrain.cli.commands.serve:serve", "serve a model: OpenAI's API, and a chat page"),
    "evaluate": (
        "lmtrain.cli.commands.evaluate:evaluate",
        "score a model: bits per byte, CORE, chat tasks, lm-eval",
    ),
    "pipeline": (
        "lmtrain.cli.commands.pipeline:pipeline",
        "from text to a model to talk to, with a report card",
    ),
    "export": (
        "lmtrain.cli.commands.export:export",
        "write a model for other tools: hf (also vLLM), gguf, peft",
    ),
    "import": (
        "lmtrain.cli.commands.import_hf:import_model",
        "import a model of transformers or an adapter of PEFT",
    ),
    "push": ("lmtrain.cli.commands.push:push", "send a run to the Hugging Face Hub: its model, or all of it"),
    "ls": ("lmtrain.cli.commands.runs:ls", "list all runs with their state, step, loss and validation"),
    "show": ("lmtrain.cli.commands.runs:show", "show a run: its state, results, files, what is next"),
    "tail": ("lmtrain.cli.commands.runs:tail", "print a run's newest steps, and follow it"),
    "diff": ("lmtrain.cli.commands.runs:diff", "print the differences of two runs"),
    "stop": ("lmtrain.cli.commands.stop:stop", "stop runs after their step, each with a checkpoint"),
    "ledger": ("lmtrain.cli.commands.runs:ledger", "show where every second of a run went, also while it runs"),
    "report": ("lmtrain.cli.commands.runs:report", "write a run as one HTML file, with curves"),
    "compare": (
        "lmtrain.cli.commands.runs:compare",
        "compare runs, with the noise of their seeds",
    ),
    "scaling": ("lmtrain.cli.commands.scaling:scaling", "fit a scaling law to a sweep, and predict a larger run"),
    "ui": ("lmtrain.cli.commands.runs:ui", "open MLflow on the runs of this project"),
    "sync": ("lmtrain.cli.commands.runs:sync", "send a run's metrics to MLflow, each point once"),
    "completion": ("lmtrain.cli.commands.completion:completion", "print a shell's script of Tab completion"),
}
