r"""Beside everything else one could have used: methods on one budget of environment steps.

    python benchmarks/peers.py --worlds frozen_lake_8x8 gridworld_4x4 --seeds 0 1
    python benchmarks/peers.py --methods grpo grpo_states --seeds 100 --minutes 30
    python benchmarks/peers.py report --write

Everybody begins with the same tiny actor, cloned from the same scripted behaviour, has the same
environment steps, counted alike, and is measured alike on the way: greedy, free decoding from
every start state, which is exact where nothing is random, and computed from the model where
something is. Steps and seconds of the processor for measuring, and for the warm start, count for
nobody.

- simpo: the pipeline: a critic ranks answers, SimPO learns from pairs;
- cloned_chosen: the same without the preference loss: the likelihood of what is chosen;
- by_return: no critic: answers are played on to the end, and ranked by what came of it;
- grpo: TRL's GRPOTrainer plays whole episodes, by `lactchain_extras.trl.rollout`;
- grpo_states: TRL's GRPOTrainer, each group being answers to one state that the world is set to,
  each played on to the end, and learnt for its own sake;
- ilql: offline, on episodes of the warm start.

One that was stopped goes on with the same command, one that is finished is only read. Every point
is a line of FOLDER/WORLD/SEED/METHOD/points.jsonl. `report` draws curves over steps and over
seconds, and prints the table (with --write into benchmarks/RESULTS_ARCHIVE.md).
"""

import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measuring import command_line
from peer_methods import METHODS, Course, Paused
from peer_worlds import WORLDS, World

from lactchain.errors import LactChainError
from lactchain.runs.run import Run
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.rounds import Rounds
from lactchain.storage.files import write_json

ORDER = ("simpo", "cloned_chosen", "by_return", "grpo_states", "grpo", "ilql")


def main() -> None:
    """Runs what is asked for, or reports what is there."""
    parser = command_line(__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "report"), default="run")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--methods", nargs="+", choices=ORDER, default=list(ORDER))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--minutes", type=float, default=math.inf, help="to stop after, at a point")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks/peers"))
    parser.add_argument("--write", action="store_true", help="the report into RESULTS_ARCHIVE.md")
    options = parser.parse_args()
    if options.command == "report":
        import peer_report

        peer_report.report(options)
        return
    pause_at = time.monotonic() + 60 * options.minutes
    try:
        for world in options.worlds:
            for seed in options.seeds:
                for method in options.methods:
                    run(options.folder.resolve(), world, seed, method, pause_at)
    except Paused:
        print("paused: the same command goes on")


def run(
    folder: Path, world_name: str, seed: int, method: str, pause_at: float, **settings: Any
) -> None:
    """One method in one world with one seed, unless that is finished."""
    world, place = WORLDS[world_name], folder / world_name / str(seed)
    if method in world.without or (place / method / "ended.json").exists():
        return
    config = warm_start(world, place, seed)
    settings = world.settings.get(method, {}) | settings
    course = Course(place / method, world, config, pause_at)
    course.point(0, config.actor)
    why = "spent"
    try:
        _method(method)(course, **settings)
    except LactChainError as error:
        why = f"{type(error).__name__}: {error}"
    write_json(place / method / "ended.json", {"why": why, "settings": settings})
    last = course.points[-1]
    print(f"{world_name} {seed} {method}: {last} ({why})", flush=True)


def _method(name: str) -> Any:
    if name.startswith("grpo"):
        import peer_grpo  # TRL takes seconds to load

        return peer_grpo.METHODS[name]
    return METHODS[name]


def warm_start(world: World, place: Path, seed: int) -> RunPipelineConfig:
    """The pipeline of a world behind its warm start, which all methods of a seed share."""
    config = world.pipeline(place / "warm", seed)
    with Run.of(config) as run:
        rounds = Rounds(config, run)
        rounds.warm_start()
    critic = replace(config.critic.config, model=rounds.encoder)
    criticism = replace(config.critic, config=critic)
    return replace(config, tiny=None, warm_start=None, actor=rounds.actor, critic=criticism)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
