"""Print a composed config, as --cfg asks."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flags import Flags


def show(composed: DictConfig, flags: Flags) -> None:
    """Print a composed config, or one package of it, as --cfg asks.

    Raises:
        ConfigurationError: There is no such package.
    """
    names = [name for name in composed if flags.show == "all" or (name == "hydra") == (flags.show == "hydra")]
    found: Any = OmegaConf.masked_copy(composed, [str(name) for name in names])
    if flags.package is not None:
        found = OmegaConf.select(composed, flags.package)
        if found is None:
            raise ConfigurationError(f"--package {flags.package}: the config has no such part; --cfg job shows all.")
        print(f"# @package {flags.package}")
    if flags.resolve:
        OmegaConf.resolve(composed)
    print(OmegaConf.to_yaml(found) if OmegaConf.is_config(found) else found)
