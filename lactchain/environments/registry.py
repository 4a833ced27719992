"""Gymnasium ids: looked up, with one line that says what is wrong with one."""

from importlib import import_module

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from lactchain.errors import ConfigError


def find_env(env_id: str, key: str = "environment.id") -> EnvSpec:
    """The registered environment of an id; of `module:id` the module, which registers it, is read.

    Args:
        key: the setting that holds the id.

    Raises:
        ConfigError: there is none, or it needs a package that is not installed.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        spec = gym.spec(name)
        if isinstance(spec.entry_point, str):
            load_env_creator(spec.entry_point)
        return spec
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"{key}: {env_id} needs a package: {error}") from error
    except (gym.error.Error, ImportError) as error:
        raise ConfigError(f"{key}: no Gymnasium environment {env_id!r}: {error}") from error
