"""Gymnasium ids: looked up, with one line that says what is wrong with one.

Worlds of other ecosystems have ids of a scheme, such as `textarena:GuessTheNumber-v0`. Another id
may name a module, `module:id`, that registers it. A file of settings has no code imported: the
module is one that Python has already, or that the command line names.
"""

import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from lactchain import plugins
from lactchain.errors import ConfigError


@dataclass(frozen=True)
class Scheme:
    """Worlds of another ecosystem, whose ids begin with its name and a colon."""

    entry_point: str
    """`module:Class` of an environment that takes what follows the colon as `name`."""
    module: str
    """What has to be installed,"""
    package: str
    """and what pip calls that."""


_named: set[str] = set()


def name_modules(names: Iterable[str]) -> None:
    """Takes modules that the command line names: ids may have them imported from now on."""
    _named.update(names)


def import_modules(names: Sequence[str]) -> None:
    """Imports modules that the command line names.

    `ConfigError` if one is not there, or is a script that ends by itself.
    """
    name_modules(names)
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(f"--import {name}: {error}; is it on PYTHONPATH?") from error
        except SystemExit as end:
            raise ConfigError(
                f"--import {name}: it called sys.exit({end.code!r}); let it do that only"
                ' if __name__ == "__main__"'
            ) from end


def modules_of(env_id: str = "") -> list[str]:
    """The modules that the command line names, and that of an id."""
    return sorted(_named | {module_of(env_id)} - {""})


def module_of(env_id: str) -> str:
    """The module that an id names, or nothing."""
    scheme, _, rest = env_id.partition(":")
    return "" if scheme in plugins.names(plugins.SCHEMES) and rest else env_id.rpartition(":")[0]


def not_imported(names: Iterable[str]) -> list[str]:
    """Those of some modules that may not be imported, since only a file names them."""
    return [name for name in names if name not in _named and name not in sys.modules]


def not_taken(env_id: str, kwargs: Iterable[str], error: Exception) -> ConfigError:
    """The error for arguments of an environment: their names alone, since values may be secrets."""
    message = " ".join(str(error).split())
    reason = message.partition(" was raised from the environment creator")[0]
    place = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
    at = f" ({type(error).__name__}, at {place.filename}:{place.lineno})"
    where = "" if "gymnasium" in place.filename else at
    if not (names := ", ".join(kwargs)):
        mend = "correct the id, or give environment.kwargs"
        return ConfigError(f"environment.id: {env_id} cannot be made: {reason}{where}; {mend}")
    return ConfigError(f"environment.kwargs: {env_id} does not take {names}: {reason}{where}")


def find_env(env_id: str, key: str = "environment.id") -> EnvSpec:
    """The registered environment of an id; of `module:id` the module, which registers it, is read.

    Of an id with the name of a `Scheme` it is its class, which is told what follows the colon.
    `ConfigError`, which names the setting `key`, if there is none, it needs a package that is not
    installed, or a module that neither the command line names nor Python has.
    """
    scheme, _, rest = env_id.partition(":")
    if scheme in plugins.names(plugins.SCHEMES) and rest:
        found: Scheme = plugins.add_on(scheme, plugins.SCHEMES)
        if find_spec(found.module) is None:
            raise ConfigError(f"{key}: {env_id} needs a package: pip install '{found.package}'")
        return EnvSpec(scheme, found.entry_point, order_enforce=False, kwargs={"name": rest})
    module, _, name = env_id.rpartition(":")
    if module and not_imported([module]):
        raise ConfigError(
            f"{key}: {env_id} is of the module {module}, and a file imports none; add "
            f"--import {module} to the command, or import it in Python first"
        )
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
        near = [known for known in gym.registry if known.partition("-v")[0] == name]
        mend = f"; did you mean {' or '.join(near)}?" if near else ""
        if isinstance(error, ModuleNotFoundError):
            mend = "; is it on PYTHONPATH?"
        elif isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound) and not module:
            mend = f"; if a module of yours has it: MODULE:{name}"
        raise ConfigError(
            f"{key}: no Gymnasium environment {env_id!r}: {str(error).rstrip('.')}{mend}"
        ) from error
