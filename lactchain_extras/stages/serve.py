"""Serves an environment at a URL, for trainers that speak OpenEnv's protocol.

Reads nothing and writes nothing. Any number of players have sessions of their own; a seed, or the
number of a task, decides where an episode begins (docs/ecosystems.md). Ctrl-C ends it.
"""

import signal
from dataclasses import dataclass
from typing import Annotated

from lactchain.config.bounds import Bound, Bounded, Count
from lactchain.config.settings import EnvironmentConfig
from lactchain.errors import ConfigError
from lactchain.runs.console import console, plain
from lactchain.runs.process import is_dry_run
from lactchain.stages.stage_run import NOTHING_DONE, require_numbers


@dataclass(frozen=True)
class ServeConfig(Bounded):
    """A world that others play."""

    environment: EnvironmentConfig = EnvironmentConfig()
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0: every machine that can reach this one may play."""
    port: Annotated[int, Bound(at_least=0, at_most=65535)] = 8000
    """Port; 0: one that is free, which the first line names."""
    max_sessions: Count = 64
    """Players at once; one more is told that there is no room."""
    num_processes: Annotated[int, Bound(at_least=1, at_most=1024)] = 1
    """Among which the sessions are shared out, for worlds that compute for long at each step."""
    panel: str | None = None
    """A file of tasks that others can cite, or a shipped one (`scripts/panel.py`), whose numbers
    are those of `index`; null: every start state."""


def main(config: ServeConfig) -> None:
    """Serves until Ctrl-C, or SIGTERM."""
    require_numbers(config)
    if is_dry_run():
        console.print(NOTHING_DONE)
        return
    try:
        from lactchain_extras.ecosystems.server_processes import serve
    except ImportError as error:
        message = f"serving needs more packages: pip install 'lactchain[openenv]' ({error})"
        raise ConfigError(message) from error
    for number in (signal.SIGINT, signal.SIGTERM):  # there is nothing to save
        signal.signal(number, signal.default_int_handler)

    def say(line: str) -> None:
        console.print(plain(line), soft_wrap=True)

    where = config.host, config.port, config.max_sessions
    serve(config.environment, *where, say, config.panel, config.num_processes)
