"""A run of a classic agent: learn, look, keep the best, go on after an interruption to the bit.

RUN/checkpoints/   everything that the run goes on from
RUN/best/  last/   weights of the member that evaluated best, then and at the end
RUN/evaluations.json  returns of every evaluation, by member
RUN/stop           a file of this name, made by anybody, ends the run in good order
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.baselines import transitions
from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.dqn import CQL, DQN
from lactchain.baselines.evaluation import FINAL_SEED, Evaluation, evaluate_agent, success_return
from lactchain.baselines.member_envs import MemberEnvs, spaces_of
from lactchain.baselines.networks import Parameters
from lactchain.baselines.population import Population
from lactchain.baselines.ppo import PPO
from lactchain.baselines.settings import (
    CQLConfig,
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    TrainAgentConfig,
    TrainCQLConfig,
    WorldConfig,
)
from lactchain.baselines.state_files import Stored, load_state, resume, save_checkpoint, save_state
from lactchain.baselines.transitions import FIELDS, TransitionData
from lactchain.errors import DataError, Interrupted, NonFiniteError
from lactchain.functional.random_streams import env_seeds
from lactchain.runs.console import GrowingTable, under_way
from lactchain.runs.process import stop_requested
from lactchain.runs.run import OptionalTracker, Run
from lactchain.storage.files import write_json
from lactchain.storage.manifests import MANIFEST, verify_manifest

AGENTS = {PPOConfig: PPO, DQNConfig: DQN, DDPGConfig: DDPG, CQLConfig: CQL}
# Evaluations choose the best on these seeds; the summary's figures are from others.
EVAL_SEED = 1_000_000


class Training(Stored):
    """One run in progress: who learns, what from, and what evaluations have found.

    The source is copies of the environment, or recorded transitions.
    """

    stored = "agent", "source", "best_return", "evaluations", "_logged", "_episodes"

    def __init__(self, config: TrainAgentConfig, run: Run) -> None:
        self.config, self.run, self.loop = config, run, config.loop
        world, seed, agent_class = config.environment, config.run.seed, AGENTS[type(config.agent)]
        self.agent = agent_class(config.agent, *spaces_of(world), seed, self.loop.num_members)
        self._is_offline = isinstance(config, TrainCQLConfig)
        self.source: Any
        if self._is_offline:
            self.source = _recorded(config, run, self.agent)
        else:
            sizes = self.loop.num_members, config.agent.num_envs
            self.source = MemberEnvs(world.id, *sizes, seed, **world.kwargs)
        self.best_return: float | None = None
        self.evaluations: list[dict[str, Any]] = []
        self._logged = self._saved = 0
        self._episodes: list[tuple[float, int]] = []
        self._last_metrics: dict[str, float] = {}
        self._trackers = [
            OptionalTracker(partial(_tracker, name, run.directory), name)
            for name in config.run.report_to
        ]
        self._table, self._success_return = GrowingTable(), success_return(world)

    @property
    def steps(self) -> int:
        """Environment steps of each member so far; updates, where nothing is played."""
        if self._is_offline:
            return self.agent.num_updates
        return self.source.num_env_steps // self.loop.num_members

    def go_on(self) -> dict[str, Any]:
        """Learns to the end, from the newest checkpoint on if there is one; returns the summary.

        Raises:
            NonFiniteError: a reward, an observation or a gradient was NaN or infinite.
            Interrupted: a signal asked to stop, in an evaluation perhaps; the state is saved.
        """
        if resume(self.run, self):
            self._saved = self.steps
            self._write_evaluations()  # nothing vouches for the file as a kill has left it
        self._began = (time.process_time(), self.steps)
        try:
            self._learn_to_the_end()
            return self._summary()
        except Interrupted as stop:
            self.save()
            what = "state saved; give the same command to go on"
            if not self._saved:
                what = "nothing was learnt yet; give the same command to begin"
            raise Interrupted(stop_requested(), f"{self.run.directory}: {stop}, {what}") from stop

    def _learn_to_the_end(self) -> None:
        unit = "updates" if self._is_offline else "steps"
        with under_way(unit, self.loop.total_steps) as step:
            step.resumed(self.steps)
            self._evaluate_if_due()  # again, where a stop cut it short
            while not self._is_over():
                if stop_requested():
                    raise Interrupted(stop_requested(), "stopped")
                self._learn()
                step.at(self.steps)
                if self.steps - self._logged >= self.loop.log_every_steps:
                    self._log()
                self._evaluate_if_due()
                every = self.loop.save_every_steps
                if every and self.steps - self._saved >= every and not self._is_over():
                    self.save()
        if not self.evaluations or self.evaluations[-1]["step"] < self.steps:
            self._evaluate()

    def save(self) -> None:
        """Writes a checkpoint and removes old ones, unless there is one of this step."""
        if self.steps == self._saved:
            return
        self._saved = self.steps
        save_checkpoint(self.run, self.steps, self.state_dict())

    def _is_over(self) -> bool:
        return self.run.told_to_end or self.steps >= self.loop.total_steps

    def _learn(self) -> None:
        metrics = self.agent.advance(self.source, min(self.steps / self.loop.total_steps, 1.0))
        if self.agent.diverged.any():
            member = int(np.flatnonzero(self.agent.diverged)[0])
            raise NonFiniteError(
                f"member {member}: the gradient is not finite after {self.steps} steps; "
                "try a lower learning rate or max_grad_norm"
            )
        if metrics:
            self._last_metrics = {key: float(np.mean(value)) for key, value in metrics.items()}
        if not self._is_offline:
            self._episodes += [(e.episode_return, e.length) for e in self.source.pop_episodes()]

    def _log(self) -> None:
        self._logged = self.steps
        record = dict(self._last_metrics)
        if self._episodes:
            returns, lengths = zip(*self._episodes, strict=True)
            record["rollout/episode_return"] = float(np.mean(returns))
            record["rollout/episode_length"] = float(np.mean(lengths))
            record["rollout/num_episodes"] = len(returns)
        self._episodes = []
        seconds, start = time.process_time() - self._began[0], self._began[1]
        rate = (self.steps - start) * self.loop.num_members / max(seconds, 1e-9)
        unit = "updates" if self._is_offline else "env_steps"
        record[f"time/{unit}_per_second"] = rate
        self._record(record, self.run.log)

    def _evaluate_if_due(self) -> None:
        last = self.evaluations[-1]["step"] if self.evaluations else 0
        every = self.loop.eval_every_steps
        if self.steps >= (last // every + 1) * every:
            self._evaluate()

    def _evaluate(self) -> None:
        result = self._play(self.agent, EVAL_SEED)
        means = result.returns.mean(axis=1)
        best = int(means.argmax())
        self.evaluations.append({"step": self.steps, "episode_return": means.tolist()})
        self._write_evaluations()
        figures = result.summary(best, self._success_return)
        record = {f"eval/{key}": value for key, value in figures.items()}
        if self.loop.num_members > 1:
            record["eval/episode_return_mean"] = float(means.mean())
        self._record(record, self.run.log_once)  # one that a stop cut short is done again
        if self.best_return is None or means[best] > self.best_return:
            self.best_return = float(means[best])
            save_agent(self.run.path("best"), self.agent, best, self.config.environment)
        save_agent(self.run.path("last"), self.agent, best, self.config.environment)
        row = {"step": f"{self.steps:,}", "return": float(means[best]), "best": self.best_return}
        self._table.add(row)

    def _write_evaluations(self) -> None:
        write_json(self.run.path("evaluations.json"), self.evaluations, indent=1)

    def _play(self, agent: Population, seed: int) -> Evaluation:
        with under_way("evaluation"):
            return evaluate_agent(agent, self.config.environment, self.loop.num_eval_episodes, seed)

    def _record(self, record: Mapping[str, float], log: Callable[..., None]) -> None:
        log(record, step=self.steps)
        for tracker in self._trackers:
            tracker.log(dict(record), step=self.steps)

    def _summary(self) -> dict[str, Any]:
        """Figures of the best and the last weights, over episodes that chose neither."""
        summary: dict[str, Any] = {
            "seed": self.config.run.seed,
            "num_members": self.loop.num_members,
            "num_steps": self.steps,
            "num_env_steps": 0 if self._is_offline else self.source.num_env_steps,
            "num_updates": self.agent.num_updates,
        }
        for name in ("best", "last"):
            result = self._play(read_agent(self.run.path(name)), FINAL_SEED)
            figures = result.summary(success_return=self._success_return)
            summary |= {f"{name}/{key}": value for key, value in figures.items()}
        summary["time/cpu_seconds"] = self.run.worked()["time/cpu_seconds"]
        for tracker in self._trackers:
            tracker.end_training()
        if not self._is_offline:
            self.source.close()
        return summary


def save_agent(directory: Path, agent: Population, member: int, world: WorldConfig) -> None:
    """Writes one member's weights, and what is needed to act with them, into a folder."""
    networks = {n: part for n, part in agent.parts.items() if isinstance(part, Parameters)}
    weights = {name: part.flat[member].numpy() for name, part in networks.items()}
    about = {
        "agent": type(agent).__name__,
        "config": asdict(agent.config),
        "environment": asdict(world),
    }
    save_state(directory, {"weights": weights, "about": about}, {"agent": about["agent"]})


def read_agent(directory: str | Path) -> Any:
    """An agent of one member that acts as the saved one did; `DataError` where none is whole."""
    directory = Path(directory)
    if not (directory / MANIFEST).exists():
        raise DataError(f"{directory}: holds no agent; expected what a run saved, such as RUN/best")
    verify_manifest(directory)
    state = load_state(directory)
    about = state["about"]
    classes = {agent.__name__: (config, agent) for config, agent in AGENTS.items()}
    if about["agent"] not in classes:
        raise DataError(f"{directory}: expected one of {sorted(classes)}, got {about['agent']}")
    config_class, agent_class = classes[about["agent"]]
    settings = about["config"] | {"hidden": tuple(about["config"]["hidden"])}
    agent = agent_class(config_class(**settings), *spaces_of(WorldConfig(**about["environment"])))
    for name, weights in state["weights"].items():
        agent.parts[name].load_state_dict({"flat": weights[None]})
    return agent


def random_transitions(world: WorldConfig, num_steps: int, seed: int) -> TransitionData:
    """What uniformly random play gives, at least `num_steps` steps of 8 copies."""
    envs = MemberEnvs(world.id, 1, 8, seed, **world.kwargs)
    envs.envs.action_space.seed(*env_seeds(seed, "actions", 1))
    steps = []
    while envs.num_env_steps < num_steps:
        steps.append(envs.step(envs.envs.action_space.sample()[None]))
    envs.close()
    columns = {name: np.concatenate([getattr(s, name)[0] for s in steps]) for name in FIELDS}
    columns["rewards"] = columns["rewards"].astype(np.float32)
    return TransitionData(**columns)


def _recorded(config: TrainCQLConfig, run: Run, agent: Population) -> TransitionData:
    """What CQL learns from; `DataError` unless it is of the environment's spaces."""
    path = config.data
    if path is None:
        path = run.path("transitions")
        if not (path / MANIFEST).exists():
            data = random_transitions(config.environment, config.num_random_steps, config.run.seed)
            transitions.write_transitions(path, data)
    data = transitions.read_transitions(path)
    for name, space, column in (
        ("observations", agent.observation_space, data.observations),
        ("actions", agent.action_space, data.actions),
    ):
        is_kind = name == "observations" or column.dtype.kind in "iu"
        fits = column.shape[1:] == space.shape and is_kind
        if not fits or column[0].astype(space.dtype) not in space:
            got = f"{column.dtype} of shape {column.shape[1:]}, such as {column[0]}"
            raise DataError(f"data: expected {name} of {space}, got {' '.join(got.split())[:200]}")
    largest = int(data.actions.max())
    if largest >= agent.action_space.n or data.actions.min() < 0:
        raise DataError(f"data: expected actions of {agent.action_space}, got {largest}")
    return data


def _tracker(name: str, directory: Path) -> Any:
    """What logs beside metrics.jsonl."""
    from accelerate import Accelerator

    tracker = Accelerator(cpu=True, log_with=name, project_dir=str(directory))
    tracker.init_trackers("lactchain")
    return tracker
