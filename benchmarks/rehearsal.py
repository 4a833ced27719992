r"""The 7B path on a CPU: every shipped `gridworld_mistral7b.yaml`, on models of small width.

The models have the true architecture, the real vocabularies and chat template, and weights in
bfloat16 and in shards; each lies in FOLDER/weights/ under the name of the model that it stands for,
and has been taught a little of what that knows (`taught_models.py`). Both are built once.

Every script then runs in FOLDER as the README starts it, by `accelerate launch` and the file that
is for a GPU (two processes: the one for a CPU, in bfloat16, since the other is refused without
GPUs). Of its shipped configuration few things change: counts; the dtype that `auto` chooses on a
GPU; and learning rates, which belong to a width, and grow as it shrinks (Yang et al. 2022, "Tensor
Programs V"). The pipeline runs beside the other stages, each on one core; if a stage has two
processes, one comes after the other.

    python benchmarks/rehearsal.py                     # make rehearsal
    python benchmarks/rehearsal.py --processes 2 --kill
    python benchmarks/rehearsal.py --only run_pipeline report
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import psutil
import torch
import yaml
from measuring import ROOT, command_line, environment, summary, words
from random_models import SHAPES
from taught_models import build_taught_actor, build_taught_encoder

from lactchain.config.parsing import flatten
from lactchain.data.base_models import prepare
from lactchain.runs.console import table
from lactchain.runs.run import read_metrics

ACTOR, ENCODER = SHAPES
TRUE_WIDTH = SHAPES[ACTOR].hidden_size
WIDTH, LAYERS = 128, 4
SHARD_BYTES = 8_000_000
SETTING = "gridworld_mistral7b"
ACCURACY = "rewards/accuracies"


@dataclass(frozen=True)
class Stage:
    """A script with its shipped configuration.

    Attributes:
        script: its stem.
        counts: what is done less of than the configuration says, and what else differs.
        dtypes: fields that `auto` would set to bfloat16 on a GPU.
        launched: whether it is started by accelerate, on several processes if so asked.
        killed_at: a file in its run; where it appears first the script may be killed.
    """

    script: str
    counts: Mapping[str, Any]
    dtypes: tuple[str, ...] = ("actor.dtype",)
    launched: bool = True
    killed_at: str | None = None


EPISODES = {"collect.num_episodes": 480, "collect.num_envs": 96, "collect.shard_size": 240}
PAIRS = {"preferences.num_states": 640}
FEW = {"training.max_steps": 8, "training.save_every_updates": 4}
SHORT = {"environment.max_chains": 4}
CHECKPOINT = "checkpoints/checkpoint-*/manifest.json"
STAGES = (
    Stage("prepare_weights", {}, dtypes=(), launched=False),
    Stage("train_bc", {"behavior.num_chains": 256, **FEW}, killed_at=CHECKPOINT),
    Stage("make_offline_data", {"collect.num_episodes": 256}, dtypes=()),
    Stage("collect_rollouts", EPISODES, killed_at="trajectories/*.parquet"),
    Stage(
        "train_critic", {**EPISODES, "training.num_epochs": 4, "training.save_every_updates": 4},
        dtypes=("actor.dtype", "critic.dtype"), killed_at=CHECKPOINT,
    ),
    Stage("judge", {"num_starts": 16, "num_replays": 4}),
    Stage("make_preferences", PAIRS, killed_at="pairs/*.parquet"),
    Stage("train_simpo", {**PAIRS, **FEW}, killed_at=CHECKPOINT),
    Stage("train_mc", FEW, killed_at=CHECKPOINT),
    Stage("train_ilql", FEW, killed_at=CHECKPOINT),
    Stage("evaluate", {**SHORT, "evaluation.num_samples": 256}),
    Stage("play", {}, launched=False),
    Stage("export", {}, dtypes=(), launched=False),
    Stage(
        "search",
        {
            "evolution.population_size": 2, "evolution.num_generations": 2,
            "language.train.training.max_steps": 4, "language.train.environment.max_chains": 4,
        },
        dtypes=("language.train.actor.dtype",), launched=False,
        killed_at="members/*/train/" + CHECKPOINT,
    ),
    Stage(
        "run_pipeline",
        {
            "num_rounds": 2,
            **{f"critic.{name}": count for name, count in EPISODES.items()},
            "critic.collect.num_episodes": 2880,
            "critic.training.num_epochs": 8,
            "simpo.preferences.num_states": 2560,
            "simpo.training.num_epochs": 2,
            "evaluation.num_samples": 256,
        },
        dtypes=("actor.dtype", "critic.config.dtype"),
        killed_at="round_1/simpo/" + CHECKPOINT,
    ),
    Stage("report", {}, dtypes=(), launched=False),
)  # fmt: skip
BESIDE = ("run_pipeline", "report")
"""These need nothing of the stages before them."""


def build_models(folder: Path) -> None:
    """Builds the two models in folders of their hub ids, unless they are there and whole."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(_build_model, (folder, folder), (ACTOR, ENCODER)))


def _build_model(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    place, build = folder / name, build_taught_actor if name == ACTOR else build_taught_encoder
    shape = {"hidden_size": WIDTH, "num_layers": LAYERS}
    prepare(place, {"hub": name}, partial(build, place, SHARD_BYTES, **shape))


def command(stage: Stage, processes: int) -> list[str]:
    """What a person would type, and counts, dtypes and learning rates behind it."""
    settings = {
        **{path: rate * TRUE_WIDTH / WIDTH for path, rate in _learning_rates(stage.script)},
        **dict.fromkeys(stage.dtypes, "bfloat16"),
        **stage.counts,
    }
    config = f"{ROOT}/configs/{stage.script}/{SETTING}.yaml"
    typed = [f"{ROOT}/scripts/{stage.script}.py", "--config", config, *words(settings)]
    if not stage.launched:
        return [sys.executable, *typed]
    name = "cuda_bf16" if processes == 1 else "cpu_2_processes"
    how = ["--config_file", f"{ROOT}/configs/accelerate/{name}.yaml", "--mixed_precision", "bf16"]
    return [sys.executable, "-m", "accelerate.commands.launch", *how, *typed]


def _learning_rates(script: str) -> Iterator[tuple[str, float]]:
    for path, value in flatten(_shipped(script)):
        if path.endswith(".learning_rate"):
            yield path, float(value)


def _shipped(script: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / f"configs/{script}/{SETTING}.yaml").read_text("utf-8"))


def run_dir(stage: Stage) -> str | None:
    """The folder, below the rehearsal's, that a stage writes; None for those that write none."""
    return _shipped(stage.script).get("run", {}).get("run_dir")


def rehearse(stage: Stage, folder: Path, processes: int, kill: bool) -> dict[str, Any]:
    """Runs a stage to its end, killed once on its way if so asked.

    Returns:
        Its row: seconds, and what its processes used of the cores (a killed start not counted).

    Raises:
        SystemExit: it failed; its log is named.
    """
    log = folder / "logs" / f"{stage.script}.log"
    log.parent.mkdir(exist_ok=True)
    typed = command(stage, processes)
    start = time.perf_counter()
    with log.open("w") as file:
        if kill and stage.killed_at is not None:
            place = folder / run_dir(stage)
            _kill_when(lambda: any(place.glob(stage.killed_at)), typed, folder, file)
        process = _start(typed, folder, file)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        what = f"{stage.script}: exit code {process.returncode}; see {log}"
        print(what, flush=True)
        sys.exit(f"{what}:\n{log.read_text()[-2000:]}")
    seconds = time.perf_counter() - start
    print(f"{stage.script}: {seconds:.0f} s", flush=True)
    return _row(stage.script, seconds, used)


def _row(stage: str, seconds: float, used: resource.struct_rusage) -> dict[str, Any]:
    return {"stage": stage, "seconds": seconds, "CPU seconds": used.ru_utime + used.ru_stime}


def _kill_when(reached: Callable[[], bool], typed: list[str], folder: Path, log: IO[str]) -> None:
    """Starts a command, and kills it and all its processes once it has come so far.

    torchrun gives each process a session of its own, so that killing the group is not enough.
    """
    process = _start(typed, folder, log)
    while process.poll() is None and not reached():
        time.sleep(0.1)
    if process.poll() is not None:
        sys.exit(f"{typed[-1]}: ended before it could be killed; see {log.name}")
    launcher = psutil.Process(process.pid)
    family = [launcher, *launcher.children(recursive=True)]
    for member in family:
        member.kill()
    psutil.wait_procs(family)
    process.wait()


def _start(typed: list[str], folder: Path, log: IO[str]) -> subprocess.Popen:
    return subprocess.Popen(
        typed, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


MERITS = {
    "success within two completions": "eval/selection/greedy/success_within_2_chains",
    "sampled success": "eval/selection/sampled/success_rate",
}
"""What two rounds have to raise; by its figure, on the start states that rounds are compared on."""


def learnt(folder: Path, num_rounds: int = 2) -> dict[str, bool]:
    """What shows that the pipeline learnt, each with whether it is so.

    Of pairs, how many more are preferred after a training than before it: many are from the start.
    """
    pipeline, found = folder / f"runs/{SETTING}", {}
    rounds = {record["step"]: record for record in read_metrics(pipeline)}
    for name, figure in MERITS.items():
        before, after = rounds[0][figure], rounds[num_rounds][figure]
        found[f"{name} rises from {before:.3f} to {after:.3f}"] = after > before
    for number in range(1, num_rounds + 1):
        stages = pipeline / f"round_{number}"
        r2 = summary(stages / "critic")["eval_r2"]
        found[f"round {number}: R² {r2:.2f} > 0 on held-out episodes"] = r2 > 0
        shares = [r[ACCURACY] for r in read_metrics(stages / "simpo") if ACCURACY in r]
        gain = shares[-1] - shares[0]
        what = f"round {number}: {gain:+.2f} of the pairs preferred since the first update"
        found[what] = gain > 0
    return found


def main() -> None:
    parser = command_line(__doc__)
    names = [stage.script for stage in STAGES]
    parser.add_argument("--folder", type=Path, default=Path("runs/rehearsal"), help="of all files")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2), help="of each stage")
    parser.add_argument("--kill", action="store_true", help="kill and resume stages that can be")
    parser.add_argument("--seed", type=int, default=0, help="of the pipeline's run")
    parser.add_argument("--only", nargs="+", choices=names, help="these stages, on former results")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    start = time.perf_counter()
    build_models(folder / "weights")
    built = time.perf_counter() - start
    rows = [_row("build models", built, resource.getrusage(resource.RUSAGE_CHILDREN))]
    chosen = [
        replace(stage, counts={**stage.counts, "run.seed": arguments.seed})
        if stage.script == "run_pipeline"
        else stage
        for stage in STAGES
        if not arguments.only or stage.script in arguments.only
    ]
    for place in filter(None, map(run_dir, chosen)):
        shutil.rmtree(folder / place, ignore_errors=True)

    def in_turn(lane: Sequence[Stage]) -> list[dict[str, Any]]:
        return [rehearse(stage, folder, arguments.processes, arguments.kill) for stage in lane]

    lanes = [[s for s in chosen if (s.script in BESIDE) == beside] for beside in (True, False)]
    with ThreadPoolExecutor(2 // arguments.processes) as pool:
        rows += [row for rows in pool.map(in_turn, lanes) for row in rows]
    cpu = sum(row["CPU seconds"] for row in rows)
    rows.append({"stage": "all", "seconds": time.perf_counter() - start, "CPU seconds": cpu})
    columns = ("seconds", "CPU seconds")
    table("Rehearsal", [row | {name: f"{row[name]:.0f}" for name in columns} for row in rows])
    if any(stage.script == "run_pipeline" for stage in chosen):
        verdicts = learnt(folder)
        print("\n".join(f"{'ok' if good else 'FAILED'}  {what}" for what, good in verdicts.items()))
        sys.exit(not all(verdicts.values()))


if __name__ == "__main__":
    main()
