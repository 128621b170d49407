"""GGUF files for llama.cpp, by its own converter: https://github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.config_writer import ACTIVATION_FUNCTIONS

CONVERTER = "convert_hf_to_gguf.py"
VARIABLE = "LLAMA_CPP"
NUM_LINES_TOLD = 5


def find_converter(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return llama.cpp's converter: given, else in $LLAMA_CPP, else on the PATH, else None.

    Raises:
        ConfigurationError: It is not where the command line or the variable says.
    """
    named = {"--llama-cpp": given, VARIABLE: environment.get(VARIABLE)}
    for source, place in named.items():
        if place is not None:
            path = Path(place)
            path = path / CONVERTER if path.is_dir() else path
            if not path.is_file():
                raise ConfigurationError(
                    f"{source}={place} holds no {CONVERTER}; name a checkout of llama.cpp or the script itself."
                )
            return path
    found = shutil.which(CONVERTER, path=environment.get("PATH"))
    return Path(found) if found else None


def require_computed_there(config: Mapping[str, Any]) -> None:
    """Refuse a model computed differently by llama.cpp: its GPT-2 has GELU by tanh, also against config.json.

    Raises:
        ConfigurationError: The model has the exact GELU.
    """
    activation = config.get("activation_function")
    if config["model_type"] == "gpt2" and activation != ACTIVATION_FUNCTIONS["tanh"]:
        raise ConfigurationError(
            f"model.gelu_approximate=none (activation_function={activation}) cannot be a GGUF file: llama.cpp computes "
            "GPT-2 with GELU by tanh, and would answer a little otherwise without a word. `lmtrain export hf` can."
        )


def convert_command(converter: Path | None, folder: Path, out: Path, *, output_type: str) -> list[str]:
    """Return the command for converting an exported folder."""
    script = [sys.executable, str(converter)] if converter else ["python", f"LLAMA_CPP/{CONVERTER}"]
    return [*script, str(folder), "--outfile", str(out), "--outtype", output_type]


def convert(converter: Path, folder: Path, out: Path, *, output_type: str) -> None:
    """Convert an exported folder to one file, whole or absent.

    Raises:
        EnvironmentProblem: The converter fails; its last lines are told.
    """
    aside = out.with_name(f".{out.name}.tmp")
    command = convert_command(converter, folder, aside, output_type=output_type)
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode or not aside.is_file():
        aside.unlink(missing_ok=True)
        told = "\n".join((finished.stderr or finished.stdout).strip().splitlines()[-NUM_LINES_TOLD:])
        raise EnvironmentProblem(
            f"{converter} ended with exit code {finished.returncode} and made no file. Its last words:\n{told}\n"
            f"It needs its own packages: pip install -r {converter.parent / 'requirements.txt'}."
        )
    aside.replace(out)
