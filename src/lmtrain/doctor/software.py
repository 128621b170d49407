"""The fitness of the installed software: Python, torch, attention kernels, a compiler for torch.compile."""

import os
import platform
import shutil
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lmtrain.doctor.finding import Finding, graded

PROJECT: Final = Path(__file__).parents[3] / "pyproject.toml"
FLASH: Final = ("flash_attn", "flash_attn_interface", "flash-attn-4")


def python_version(version: str | None = None) -> Finding:
    """Hold the running Python against the project's range."""
    version = version or platform.python_version()
    wanted = SpecifierSet(_project()[0])
    return graded(
        "python",
        f"{version}, {wanted} wanted",
        is_bad=version not in wanted,
        fix="make an environment with a Python that fits: `uv venv --python 3.11`, then `uv pip install -e .`",
    )


def package_versions(names: tuple[str, ...] = ("torch", "lightning", "hydra-core", "tokenizers")) -> list[Finding]:
    """Hold the most important installed packages against the project's ranges."""
    wanted = {need.name: need.specifier for need in map(Requirement, _project()[1])}
    return [package_version(name, installed(name), wanted.get(name, SpecifierSet())) for name in names]


def package_version(name: str, version: str | None, wanted: SpecifierSet) -> Finding:
    """Hold one version, None for an absent package, against the wanted range."""
    return graded(
        name,
        f"{version or 'not installed'}, {wanted or 'any version'} wanted",
        is_bad=version is None or not wanted.contains(version.partition("+")[0], prereleases=True),
        fix=f"install what fits: `uv pip install '{name}{wanted}'`",
    )


def flash_attention(*, has_gpu: bool, version: str | None = None) -> Finding:
    """Return whether a FlashAttention package is there where a GPU could use it."""
    version = version or next((found for name in FLASH if (found := installed(name))), None)
    if version is not None or not has_gpu:
        found = f"flash-attn {version}" if version else "not needed without a GPU"
        return Finding(name="flash attention", state="ok", found=found)
    return Finding(
        name="flash attention",
        state="warn",
        found="not installed; torch's own fused kernel is used",
        fix="install the extra: `uv pip install -e .[flash]`; it is built against the installed torch",
    )


def compiler(environment: Mapping[str, str] = os.environ, *, without: str) -> Finding:
    """Find torch.compile's C++ compiler on a CPU, and Triton on a GPU; `without` are words that need none."""
    candidates = [name for name in (environment.get("CXX"), "g++", "clang++") if name]
    found = next((path for name in candidates if (path := shutil.which(name, path=environment.get("PATH")))), None)
    return graded(
        "C++ compiler",
        found or "none found: torch.compile cannot work",
        is_worse=found is None,
        fix=f"install g++ (`apt-get install g++`), set CXX, or train with {without}",
    )


def installed(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _project() -> tuple[str, list[str]]:
    """Return the project's required Python and packages, from its source tree or its installed metadata."""
    if PROJECT.exists():
        project = tomllib.loads(PROJECT.read_text())["project"]
        return project["requires-python"], project["dependencies"]
    return metadata.metadata("lmtrain")["Requires-Python"], metadata.requires("lmtrain") or []
