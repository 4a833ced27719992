"""Writes a panel: numbered tasks of a world in a file that others can cite; or verifies a result.

Reads FILE, where it is there, and a result; writes FILE. `evaluate --panel FILE` plays the tasks
and writes RUN/panel_result.json, which --verify plays once more, without the actor.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lactchain.config.bounds import AtLeast0, Bound, Bounded
from lactchain.config.settings import EnvironmentConfig
from lactchain.errors import ConfigError
from lactchain.runs.console import console, figures, table
from lactchain.runs.process import is_dry_run
from lactchain.stages.stage_run import NOTHING_DONE, require_numbers
from lactchain.storage.files import make_folder, read_json, seal, write_sealed
from lactchain_extras.panels import make_panel, verify

OTHER = "name a file that is not there yet"


@dataclass(frozen=True)
class PanelConfig(Bounded):
    """A panel of a world."""

    environment: EnvironmentConfig = EnvironmentConfig()
    """What an episode is. How a state is worded (`template`) is left to who plays."""
    count: Annotated[int, Bound(at_least=1, at_most=100_000)] = 200
    """Tasks. Where the world has fewer start states, some begin alike, under other dice."""
    seed: AtLeast0 = 0
    """Which tasks, and which dice."""
    file: str = "panel.json"
    """The panel: it is written, or, with `verify`, read; then a word may stand for one that is
    shipped."""
    verify: str | None = None
    """A result of this panel to be played once more; null: the panel is made."""


def main(config: PanelConfig) -> None:
    """Makes the panel, or verifies the result, and prints what is in it."""
    require_numbers(config)
    if is_dry_run():
        console.print(NOTHING_DONE)
        return
    if config.verify is not None:
        figures(f"{config.verify}: its answers come to", verify(config.file, config.verify))
        return
    panel = make_panel(config.environment, config.count, config.seed)
    path = Path(config.file)
    if path.exists() and read_json(path, OTHER) != seal(panel):
        raise ConfigError(
            f"file: {path} is there, and is another panel; {OTHER}, or, to play a result "
            "once more, add --verify RESULT"
        )
    make_folder(path.absolute().parent)
    write_sealed(path, panel)
    players = panel["floors"] | ({"optimum": panel["optimum"]} if panel["optimum"] else {})
    rows = [{"player": name} | found for name, found in players.items()]
    table(f"{config.file}: {len(panel['tasks'])} tasks, rules {panel['rules'][:12]}", rows)
