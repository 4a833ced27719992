"""One preset in many worlds: the recipe with nothing given but the world.

    python benchmarks/worlds.py                       # every world, seeds 0 to 2
    python benchmarks/worlds.py --worlds taxi --seeds 100
    python benchmarks/worlds.py --worlds gridworld_4x4 --seeds 0 1 2 3 4 --launch 2

Each run is a run folder under --folder: one that is finished is only read, one that was killed goes
on.
Figures are of greedy, free decoding from every start state; with chance, exact ones of the same
policy. `held_back` keeps a fifth of the pairs of start and goal cells from practice, and `words`
speaks in the world's own sentences behind the founding instruction. The table goes to the screen, a
row for each run; targets are those of the preset.
"""

import json
import subprocess
import sys
from pathlib import Path

from measuring import ROOT, command_line, environment, summary

from lactchain.config.parsing import parse
from lactchain.runs.run import Run
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.rounds import Rounds
from lactchain.stages.run_pipeline import sized
from lactchain.stages.train_simpo import TrainSimPOConfig


def _preset(name: str) -> list[str]:
    return ["--config", str(ROOT / f"configs/run_pipeline/{name}.yaml")]


GAMES = {name: _preset(f"{name}_tiny") for name in ("maze", "maze_partial", "wordle")}
"""Worlds of LMRL-Gym, each with a preset of its own."""
GRID, LAKE = "lactchain/GridWorld-v0", "FrozenLake-v1"
WALLS = {
    "a": [[1, 1], [1, 2], [1, 3], [4, 2], [4, 3], [4, 4]],
    "b": [[2, 0], [2, 1], [2, 2], [3, 4], [4, 4]],
    "c": [[0, 3], [1, 3], [3, 1], [3, 2], [3, 3], [5, 4]],
}


def world(env_id: str, *more: str, **kwargs: object) -> list[str]:
    """What the command line says of a world."""
    return ["--environment.id", env_id, "--environment.kwargs", json.dumps(kwargs), *more]


WORLDS = {
    "gridworld_4x4": world(GRID),
    "gridworld_5x5": world(GRID, size=5),
    **{f"gridworld_6x6_{name}": world(GRID, size=6, walls=walls) for name, walls in WALLS.items()},
    "frozen_lake_4x4": world(LAKE, is_slippery=False),
    "frozen_lake_8x8": world(LAKE, is_slippery=False, map_name="8x8"),
    "cliff_walking": world("CliffWalking-v1"),
    "taxi": world("Taxi-v4"),
    "slippery_lake": world(LAKE, is_slippery=True),
    "slippery_lake_chains_of_3": world(
        LAKE, "--environment.max_chain_length", "3", is_slippery=True
    ),
    "key_corridor": world("key_corridor:my/KeyCorridor-v0"),
    "held_back": world(
        GRID,
        *("--environment.held_back.share", "0.2"),
        *("--environment.held_back.by", "[x, y, goal_x, goal_y]"),
    ),
    "words": world(GRID, "--environment.template", "null", "--actor.strategy", "founding"),
}
OTHERS = (
    "WindyGrid", "Puzzle", "LightsOut", "Box", "Coin", "Hanoi", "Dial30", "Dial100", "Ladder",
    "Jugs", "Corridor", "Blackjack",
)  # fmt: skip
BUILT_IN = [name for name in WORLDS if name != "key_corridor"]
"""Worlds that a process knows without a module from outside of the package."""
WORLDS |= {name: world(f"other_worlds:others/{name}-v0") for name in OTHERS}
FIGURES = {
    "success": "success_rate",
    "return": "episode_return",
    "actions / shortest": "actions_over_shortest",
    "of optimum": "of_optimum",
    "held back": "held_back/success_rate",
    "invalid": "sampled_invalid_rate",
}


def main() -> None:
    """Runs what is asked for, and prints the table."""
    parser = command_line(__doc__)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks/worlds"))
    parser.add_argument("--launch", type=int, default=1, help="processes of each run")
    options = parser.parse_args()
    print(f"| world | seed | {' | '.join(FIGURES)} | rounds | seconds | CPU seconds |")
    print("|---|---|" + "---|" * (len(FIGURES) + 3))
    for name in options.worlds:
        for seed in options.seeds:
            folder = (ROOT / options.folder / f"{name}_{seed}").resolve()
            play(WORLDS[name], folder, seed, options.launch)
            print(row(name, seed, folder), flush=True)


def play(arguments: list[str], folder: Path, seed: int, processes: int) -> None:
    """Runs the preset, unless that is done."""
    if (folder / "summary.json").exists():
        return
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "accelerate.commands.launch", "--config_file"]
        command += ["configs/accelerate/cpu_2_processes.yaml", "--num_processes", str(processes)]
    command += ["scripts/run_pipeline.py", "--config", "configs/run_pipeline/tiny.yaml"]
    command += [*arguments, "--run.run_dir", str(folder), "--run.seed", str(seed)]
    env = environment(ROOT / "tests")  # which have worlds from outside of the package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".log"), "w") as log:
        subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=log, check=False)


def begun(
    name: str, folder: Path, seed: int, num_critics: int = 1
) -> tuple[RunPipelineConfig, TrainSimPOConfig]:
    """Runs the preset up to a round's critic; returns its settings, and those of what is next.

    The evaluation before any round is in `folder/round_0`.
    """
    preset = GAMES[name] if name in GAMES else [*_preset("tiny"), *WORLDS[name]]
    where = ["--run.run_dir", str(folder), "--run.seed", str(seed)]
    where += ["--actor.model", f"{folder}/base/actor"]
    where += ["--critic.config.model", f"{folder}/base/encoder"]
    config = sized(parse(RunPipelineConfig, [*preset, *where]))
    with Run.of(config) as run:
        rounds = Rounds(config, run)
        rounds.warm_start()
        rounds.evaluate(0)
        rounds.train_critic(1)
        for number in range(1, num_critics):
            rounds.train_actor(number)
            rounds.train_critic(number + 1)
        return config, rounds._improvement(num_critics)


def row(name: str, seed: int, folder: Path) -> str:
    """A line of the table: the figures of the run's result, or why there is none."""
    if not (folder / "summary.json").exists():
        lines = folder.with_suffix(".log").read_text().strip().splitlines()
        return f"| {name} | {seed} | {lines[-1] if lines else 'no output'} |"
    whole = summary(folder)
    figures = summary(folder / f"round_{whole['round']}/evaluation")
    cells = [figures.get(key) for key in FIGURES.values()]
    shown = ["" if cell is None else f"{cell:.4f}" for cell in cells]
    ends = [f"{whole['num_rounds']}" + ("" if whole["target_met"] else ", target missed")]
    ends += [f"{whole[key]:.0f}" for key in ("wall_seconds", "time/cpu_seconds")]
    return f"| {name} | {seed} | {' | '.join(shown + ends)} |"


if __name__ == "__main__":
    main()
