"""Every program on the smallest models, in processes of their own that cost next to nothing.

`start` runs the script itself, as from the command line, in a process forked from a server that has
imported everything already.
"""

import functools
import gc
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import training_setups
from script_setups import GRID, STAGES, build_weights, config_of
from test_baseline_runs import CONFIGS as AGENTS
from test_language_search import language_search
from test_search_runs import DQN, PPO
from test_search_runs import config as agent_search

from fault_matrix.cases import Verdict
from fault_matrix.digests import Digest, differing, digest, whole
from lactchain.config import dump
from lactchain.settings import ActorConfig, CollectConfig, PreferenceConfig, RunConfig
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.train_ilql import TrainILQLConfig
from lactchain.stages.train_mc import TrainMCConfig

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
PATIENCE = 300.0
"""Seconds after which a process hangs."""


@dataclass(frozen=True)
class Program:
    """A script with one of its configurations."""

    name: str
    script: str
    make: Callable[[Path, Path], Any]

    def config(self, shared: Path, run_dir: Path) -> Any:
        """Its configuration; `shared` is a folder of `prepare`."""
        return self.make(shared, run_dir)

    def digest(self, run_dir: Path) -> Digest:
        """What its run has ended with."""
        return digest(run_dir)


COLLECT = CollectConfig(num_episodes=32, num_envs=16, shard_size=8)
PREFERENCES = PreferenceConfig(num_states=32, num_candidates=4, states_per_shard=8)
EVALUATION = EvaluationConfig(num_envs=48, num_samples=16)
SMALL = {"collect": COLLECT, "preferences": PREFERENCES, "evaluation": EVALUATION}


def stage(name: str) -> Program:
    """A stage of the pipeline."""

    def make(shared: Path, run_dir: Path) -> Any:
        config = config_of(name, shared, run_dir)
        return replace(config, **{k: v for k, v in SMALL.items() if hasattr(config, k)})

    return Program(name, name, make)


def pipeline(shared: Path, run_dir: Path) -> Any:
    """Two rounds."""
    config = config_of("run_pipeline", shared, run_dir)
    return replace(
        config,
        critic=replace(config.critic, collect=COLLECT),
        simpo=replace(config.simpo, preferences=PREFERENCES),
        evaluation=EVALUATION,
    )


def language(shared: Path, run_dir: Path) -> Any:
    """Two generations of two actors."""
    config = language_search(shared, run_dir)
    train = replace(config.language.train, preferences=PREFERENCES)
    return replace(
        config,
        language=replace(config.language, train=train),
        evolution=replace(config.evolution, population_size=2, num_generations=2),
    )


def values(name: str, config_class: type) -> Program:
    """Values of tokens, from the episodes of `prepare`."""

    def make(shared: Path, run_dir: Path) -> Any:
        return config_class(
            run=RunConfig(run_dir=str(run_dir)),
            environment=GRID,
            actor=ActorConfig(str(shared / "actor"), dtype="float32"),
            trajectories=str(shared / "episodes"),
            training=training_setups.changed(num_epochs=1, batch_size=16),
        )

    return Program(name, name, make)


def agent(name: str) -> Program:
    """A classic agent."""

    def make(shared: Path, run_dir: Path) -> Any:
        return replace(AGENTS[name], run=RunConfig(run_dir=str(run_dir)))

    return Program(f"train_{name}", f"train_{name}", make)


def search(name: str, **changes: Any) -> Program:
    """A search among classic agents."""
    return Program(name, "search", lambda shared, run_dir: agent_search(run_dir, **changes))


def _programs() -> Iterator[Program]:
    yield from map(stage, STAGES)
    yield Program("run_pipeline", "run_pipeline", pipeline)
    yield values("train_mc", TrainMCConfig)
    yield values("train_ilql", TrainILQLConfig)
    yield from map(agent, AGENTS)
    yield search("search_evolution", ppo=PPO)
    yield search("search_random", method="random", ppo=None, dqn=DQN)
    yield search("search_tpe", method="tpe", ppo=PPO)
    yield Program("search_language", "search", language)


PROGRAMS = {program.name: program for program in _programs()}


def prepare(shared: Path) -> Path:
    """Writes what the programs read: an untrained actor and encoder, and episodes."""
    if not (shared / "episodes").exists():
        build_weights(shared)
        episodes = run_once(stage("make_offline_data"), shared, shared / "offline")
        os.rename(episodes / "trajectories", shared / "episodes")
    return shared


@functools.cache
def finished(program: Program, shared: Path) -> Path:
    """The folder of the run that nothing disturbed."""
    run_dir = shared / "finished" / program.name / "run"
    return run_dir if run_dir.exists() else run_once(program, shared, run_dir)


@functools.cache
def expected(program: Program, shared: Path) -> Digest:
    """What every run of the program must end with."""
    return whole(program.digest(finished(program, shared)))


def run_once(program: Program, shared: Path, run_dir: Path) -> Path:
    """A run to its end."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    process, seconds = start(program, program.config(shared, run_dir)), 0.0
    while process.is_alive():
        seconds = worked(process.pid) or seconds
        time.sleep(0.002)
    if process.exitcode != 0:
        raise RuntimeError(f"{program.name}: {last_line(run_dir)}")
    (run_dir.parent / "seconds").write_text(f"{seconds}")
    return run_dir


def duration(program: Program, shared: Path) -> float:
    """How long the run that nothing disturbed has worked, in CPU seconds."""
    return float((finished(program, shared).parent / "seconds").read_text())


def start(
    program: Program,
    config: Any,
    *arguments: str,
    before: Callable[[], None] | None = None,
    **variables: str,
) -> BaseProcess:
    """A process that runs a program, as from the command line; it prints into `log_of`.

    Args:
        arguments: further ones of the command.
        before: called in the process before the script; it can be pickled.
        variables: of its environment.
    """
    run_dir = Path(config.run.run_dir)
    file = run_dir.with_suffix(".yaml")
    if not file.exists() or file.read_text() != dump(config):  # another rank may read it
        file.write_text(dump(config))
    log = log_of(run_dir, int(variables.get("RANK", 0)))
    arguments = ("--config", str(file), *arguments)
    return start_script(program.script, arguments, log, before, variables)


def start_script(
    script: str,
    arguments: Sequence[str],
    log: Path,
    before: Callable[[], None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> BaseProcess:
    """A process that runs a script with arguments; it prints into a file."""
    command = [str(SCRIPTS / f"{script}.py"), *arguments]
    process = _preloaded().Process(target=_main, args=(command, log, before, variables or {}))
    process.start()
    return process


def ended(process: BaseProcess, patience: float = PATIENCE) -> int | None:
    """Waits for the end of a process, and gives its exit code; None: it hung, and was killed."""
    process.join(patience)
    if process.exitcode is None:
        kill(process)
        return None
    return process.exitcode


def kill(process: BaseProcess) -> None:
    """Ends a process at once."""
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def wait_until(process: BaseProcess, cpu_seconds: float) -> bool:
    """Waits until a process has worked so long; False if it has ended before."""
    while process.is_alive():
        if worked(process.pid) >= cpu_seconds:
            return True
        time.sleep(0.002)
    return False


def in_the_middle(
    program: Program,
    shared: Path,
    run_dir: Path,
    share: float,
    before: Callable[[], None] | None = None,
) -> BaseProcess:
    """A run that has worked for a share of its time; it begins anew where it was faster than that.

    It has ended only if it has failed. See `start` for `before`.
    """
    while True:
        process = start(program, program.config(shared, run_dir), before=before)
        if wait_until(process, share * duration(program, shared)) or process.exitcode != 0:
            return process
        shutil.rmtree(run_dir)
        share *= 0.8


def worked(pid: int) -> float:
    """Seconds that the main thread of a process had a core, however busy the machine is."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def log_of(run_dir: Path, rank: int = 0) -> Path:
    """Where the processes of a run print, one after the other."""
    return Path(f"{run_dir}-{rank}.log")


def last_line(run_dir: Path) -> str:
    """The last thing that the processes of a run printed."""
    log = log_of(run_dir)
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:500]


def verdict(
    program: Program, shared: Path, run_dir: Path, code: int | None, stopped: bool = False
) -> Verdict:
    """Whether a run ended by itself, and as if nothing had been; see `differing`."""
    if "Traceback" in log_of(run_dir).read_text(errors="replace"):
        return Verdict(False, "stack trace", last_line(run_dir))
    if code is None:
        return Verdict(False, "hung", last_line(run_dir))
    if code != 0:
        return Verdict(False, f"exit {code}", last_line(run_dir))
    if places := differing(program.digest(run_dir), expected(program, shared), stopped):
        return Verdict(False, "not equal", ", ".join(places)[:500])
    return Verdict(True, "equal")


def _main(
    command: list[str], log: Path, before: Callable[[], None] | None, variables: dict[str, str]
) -> None:
    os.environ.update(variables)
    sys.stdout = sys.stderr = open(log, "a")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    torch.set_num_threads(1)
    gc.freeze()
    sys.argv = command
    if before is not None:
        before()
    runpy.run_path(command[0], run_name="__main__")


@functools.cache
def _preloaded() -> Any:
    """Starts processes in milliseconds, from a server that has imported what programs need."""
    folders = [str(Path(__file__).parent.parent), str(Path(training_setups.__file__).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    context = training_setups.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fault_matrix.preloaded"])
    return context
