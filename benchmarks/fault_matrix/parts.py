"""The table of cases: what is done to which programs, how often, in which row of the matrix."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fault_matrix import (
    configurations,
    damage,
    disk,
    kills,
    malice,
    ranks,
    signals,
    surroundings,
    worlds,
)
from fault_matrix.cases import Kind
from fault_matrix.programs import prepared

MALICE = (
    "train_critic", "train_simpo", "train_mc", "collect_rollouts", "make_preferences", "evaluate",
    "train_ppo", "train_cql", "search_evolution", "search_random", "search_language",
)  # fmt: skip
RANKS = ("train_critic", "train_simpo", "collect_rollouts", "make_preferences", "train_bc")
WORLDS = ("collect_rollouts", "evaluate", "make_preferences", "train_ppo", "train_dqn")
PARTS = {
    "kills": (
        Kind(2, "operation", 56, kills.killed_at),
        Kind(1, "random", 56, partial(kills.killed, False)),
        Kind(1, "command", 20, partial(kills.killed, True)),
    ),
    "signals": (Kind(11, "signal", 28, signals.stopped),),
    "damage": (Kind(4, "damage", 278, damage.damaged),),
    "malice": (Kind(23, "trap", 40, malice.attacked, MALICE),),
    "power": (Kind(2, "loss", 56, kills.cut),),
    "disk": (Kind(3, "disk", 30, disk.limited),),
    "surroundings": (Kind(26, "odd", len(surroundings.SURROUNDINGS), surroundings.odd),),
    "configurations": (
        Kind(8, "text", 5, configurations.parse_texts),
        Kind(23, "attack", 5, configurations.parse_attacks),
    ),
    "worlds": tuple(
        Kind(row, f"row-{row}", len(faults), partial(worlds.misbehave, faults), WORLDS)
        for row, faults in worlds.ROWS.items()
    ),
    "ranks": (Kind(12, "rank", 12, ranks.lose, RANKS),),
}


def programs_of(part: str, shared: Path, names: Collection[str] | None) -> Mapping[str, Any]:
    """What a part attacks of these names (None: all); `shared` gets models and episodes."""
    return configurations.scripts(names) if part == "configurations" else prepared(shared, names)
