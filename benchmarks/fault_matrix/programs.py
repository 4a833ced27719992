"""Every program on the smallest models, what it ends with, and runs that were left half done."""

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import training_setups
from script_setups import GRID, LORA, STAGES, build_weights, config_of
from test_baseline_runs import CONFIGS as AGENTS
from test_language_search import language_search
from test_search_runs import PPO
from test_search_runs import config as agent_search

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import Digest, differing, digest, done, kept, whole
from fault_matrix.processes import ended, last_line, log_of, said, start, to_end, wait_until
from lactchain.config import settings
from lactchain.config.parsing import dump
from lactchain.stages.evaluate import EvaluationConfig
from lactchain_extras.stages.judge import JudgeConfig
from lactchain_extras.stages.train_ilql import TrainILQLConfig
from lactchain_extras.stages.train_mc import TrainMCConfig

COLLECT = settings.CollectConfig(num_episodes=32, num_envs=16, shard_size=8)
PREFERENCES = settings.PreferenceConfig(num_states=32, num_candidates=4, states_per_shard=8)
EVALUATION = EvaluationConfig(num_envs=48, num_samples=16)
SMALL = {"collect": COLLECT, "preferences": PREFERENCES, "evaluation": EVALUATION}
INPUTS = ("actor", "encoder", "adapter", "episodes")
MADE = (("make_offline_data", "trajectories", "episodes"), ("train_bc_adapter", "actor", "adapter"))
BEGIN, FINISHED = "about to begin", "finished"
MOMENTS = ("quarter", "half", "three quarters", FINISHED, BEGIN)


@dataclass(frozen=True)
class Undisturbed:
    """What a run ends with and prints, and for how many CPU seconds it works."""

    digest: Digest
    log: str
    seconds: float


@dataclass(frozen=True)
class Program:
    """A script with one of its configurations.

    Attributes:
        make: that configuration, by a folder of models and episodes, and that of the run.
        shared: the folder of models and episodes.
    """

    name: str
    script: str
    make: Callable[[Path, Path], Any]
    shared: Path = Path()

    def config(self, run_dir: Path) -> Any:
        """Its configuration; checkpoints stay, so that they can be compared."""
        config = self.make(self.shared, run_dir)
        return replace(config, run=replace(config.run, keep_checkpoints=True))

    def start(self, run_dir: Path, config: Any = None, **how: Any) -> BaseProcess:
        """A process that runs it; see `processes.start`."""
        text, file = dump(config or self.config(run_dir)), run_dir.with_suffix(".yaml")
        if not file.exists() or file.read_text() != text:  # another rank may read it
            file.write_text(text)
        log = log_of(run_dir, int(how.get("RANK", 0)))
        return start(self.script, ["--config", str(file)], log, **how)

    def verdict(self, run_dir: Path, code: int | None, stopped: bool = False) -> Verdict:
        """Whether a run ended by itself, and as if nothing had been; see `differing`."""
        if wrong := end_of(said(run_dir), code, (0,)):
            return wrong
        places = differing(digest(run_dir), self.undisturbed().digest, stopped)
        return bad("not equal", places) if places else good("equal")

    def goes_on(self, run_dir: Path) -> Verdict:
        """What the same command comes to; it must keep what had been done."""
        before, code = done(run_dir), ended(self.start(run_dir))
        return kept(before, run_dir, self.verdict(run_dir, code))

    @property
    def place(self) -> Path:
        """Where its runs are while they run, where that matters: some write it down."""
        place = self.shared / "place" / self.name / "run"
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def inputs(self) -> list[Path]:
        """Folders that a program reads."""
        config = dump(self.config(self.place))
        return [self.shared / name for name in INPUTS if str(self.shared / name) in config]

    def in_the_middle(self, run_dir: Path, share: float) -> BaseProcess:
        """A run that has worked for a share of its time; anew where it was faster than that.

        It has ended only if it has failed.
        """
        while True:
            process = self.start(run_dir)
            if wait_until(process, share * self.undisturbed().seconds) or process.exitcode:
                return process
            shutil.rmtree(run_dir)
            share *= 0.8

    @cache  # noqa: B019  - programs live as long as the process
    def undisturbed(self, moment: str = BEGIN) -> Undisturbed:
        """A run that is left at a moment and goes on, its files undamaged."""
        run_dir = self.fresh(moment)
        process = self.start(run_dir)
        [seconds] = to_end([process])
        end_with(0, process, run_dir)
        return Undisturbed(whole(digest(run_dir)), said(run_dir), seconds)

    def fresh(self, moment: str) -> Path:
        """The place of a program with a run that was left there at a moment, and nothing else."""
        left, place = None if moment == BEGIN else self.left_at(moment), self.place
        shutil.rmtree(place, ignore_errors=True)
        log_of(place).unlink(missing_ok=True)
        if left is not None:
            shutil.copytree(left, place, symlinks=True)
        return place

    @cache  # noqa: B019  - programs live as long as the process
    def left_at(self, moment: str) -> Path:
        """The folder of a run that was killed at a moment, or has finished."""
        if moment == FINISHED:
            return self.run_until(moment, 0)
        num_files = int(self.left_at(FINISHED).with_suffix(".count").read_text())
        return self.run_until(moment, max(2, num_files * (MOMENTS.index(moment) + 1) // 4))

    def run_until(self, name: str, number: int, **changes: Any) -> Path:
        """A run that ends or is killed in its place, and then is moved to where it is left."""
        run_dir, left = self.fresh(BEGIN), self.shared / "left" / self.name / name
        left.parent.mkdir(parents=True, exist_ok=True)
        config = self.config(run_dir)
        config = replace(config, run=replace(config.run, **changes))
        stop = partial(stop_at, number, left.with_suffix(".count"))
        process = self.start(run_dir, config, before=stop)
        end_with(-signal.SIGKILL if number else 0, process, run_dir)
        return run_dir.rename(left)


def end_of(text: str, code: int | None, codes: Iterable[int]) -> Verdict | None:
    """What is wrong with the end of a process that printed this; who ends by an error says so."""
    last = last_line(text)
    if "Traceback" in text:
        return bad("stack trace", last)
    if code not in codes or (code and not last.startswith("error: ")):
        return bad("hung" if code is None else f"exit {code}", last)
    return None


def stage(name: str, shared: Path, run_dir: Path) -> Any:
    config = config_of(name, shared, run_dir)
    if name != "run_pipeline":
        return replace(config, **{k: v for k, v in SMALL.items() if hasattr(config, k)})
    critic = replace(config.critic, collect=COLLECT)
    simpo = replace(config.simpo, preferences=PREFERENCES)
    return replace(config, critic=critic, simpo=simpo, evaluation=EVALUATION)


def with_adapters(name: str, shared: Path, run_dir: Path) -> Any:
    """A stage that trains adapters; SimPO goes on with that of `prepared`."""
    config = stage(name, shared, run_dir)
    if name == "train_critic":
        return replace(config, critic=replace(config.critic, lora=LORA))
    adapter = None if name == "train_bc" else str(shared / "adapter")
    return replace(config, actor=replace(config.actor, adapter=adapter, lora=LORA))


def values(config_class: type, shared: Path, run_dir: Path) -> Any:
    """Values of tokens, from the episodes of `prepared`."""
    return config_class(
        run=settings.RunConfig(run_dir=str(run_dir)),
        environment=GRID,
        actor=settings.ActorConfig(str(shared / "actor"), dtype="float32"),
        trajectories=str(shared / "episodes"),
        training=training_setups.changed(num_epochs=1, batch_size=16),
    )


def judged(shared: Path, run_dir: Path) -> Any:
    """States of an actor, beside whose values nobody's are judged."""
    actor = settings.SamplerConfig(str(shared / "actor"), decoding="constrained", max_new_tokens=8)
    return JudgeConfig(run=settings.RunConfig(run_dir=str(run_dir)), environment=GRID, actor=actor)


def agent(config: Any, _: Path, run_dir: Path) -> Any:
    return replace(config, run=settings.RunConfig(run_dir=str(run_dir)))


def language(shared: Path, run_dir: Path) -> Any:
    """Two generations of two actors."""
    config = language_search(shared, run_dir, lora=None)
    train = replace(config.language.train, preferences=PREFERENCES)
    evolution = replace(config.evolution, population_size=2, num_generations=2)
    return replace(config, language=replace(config.language, train=train), evolution=evolution)


ADAPTED = ("train_bc", "train_critic", "train_simpo")
MAKERS: dict[str, Callable[[Path, Path], Any]] = {
    **{name: partial(stage, name) for name in (*STAGES, "run_pipeline")},
    "judge": judged,
    "train_mc": partial(values, TrainMCConfig),
    "train_ilql": partial(values, TrainILQLConfig),
    **{f"train_{name}": partial(agent, config) for name, config in AGENTS.items()},
    "search_evolution": lambda _, run_dir: agent_search(run_dir, ppo=PPO),
    "search_language": language,
    **{f"{name}_adapter": partial(with_adapters, name) for name in ADAPTED},
}
PROGRAMS: dict[str, Program] = {}
for _name, _make in MAKERS.items():
    _script = "search" if _name.startswith("search") else _name.removesuffix("_adapter")
    PROGRAMS[_name] = Program(_name, _script, _make)


def prepared(shared: Path, names: Iterable[str] | None = None) -> dict[str, Program]:
    """Programs of these names (None: all), with models, an adapter and episodes for them."""
    if not (shared / "adapter").exists():
        build_weights(shared)
        for name, made, where in MADE:
            maker, run_dir = replace(PROGRAMS[name], shared=shared), shared / "made" / name
            run_dir.parent.mkdir(exist_ok=True)
            end_with(0, maker.start(run_dir), run_dir)
            (run_dir / made).rename(shared / where)
    chosen = (p for p in PROGRAMS.values() if names is None or p.name in names)
    return {program.name: replace(program, shared=shared) for program in chosen}


def end_with(code: int, process: BaseProcess, run_dir: Path) -> None:
    """Waits for an end that is expected; any other is a fault of what prepares a case."""
    if (found := ended(process)) != code:
        told = last_line(said(run_dir))
        raise RuntimeError(f"{run_dir}: expected exit {code}, got {found}: {told}")


def stop_at(number: int, counter: Path) -> None:
    """Kills this process when it has given files their names so often; 0: counts them only."""
    original, numbers = os.replace, count(1)

    def replaced(*args: object, **kwargs: object) -> None:
        original(*args, **kwargs)
        done = next(numbers)
        if number == 0:
            counter.write_text(str(done))
        elif done == number:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replaced


@contextmanager
def put_back(folder: Path, aside: Path) -> Iterator[None]:
    """Whatever becomes of a folder meanwhile, it is as it was afterwards."""
    shutil.copytree(folder, aside, symlinks=True)
    try:
        yield
    finally:
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(aside, folder, symlinks=True)
