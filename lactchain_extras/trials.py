"""Trials: agents trained from the start one after the other, with settings that a sampler proposes.

The competitors of evolution, behind the same counter of environment steps (`Arena`): random search,
and Optuna's TPE (Bergstra et al. 2011; Akiba et al. 2019), whose objective is the evaluation at a
trial's end, with or without its median pruner.

    RUN/trials.jsonl    a line for each evaluation
    RUN/best/           the agent that the search returns, as it was when it was evaluated
    RUN/stop            a file of this name, made by anybody, ends the search in good order
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

import numpy as np

from lactchain.baselines.training import read_agent
from lactchain.config.tunable import tunable_values, with_tunables
from lactchain.errors import ConfigError, DataError
from lactchain.runs.console import GrowingTable
from lactchain.runs.process import refuse_unless_inexact
from lactchain.runs.progress import under_way
from lactchain.runs.run import Run, read_metrics
from lactchain.search.agents import Arena
from lactchain.search.evolution import Child
from lactchain.search.members import take
from lactchain.search.mutations import (
    choose_networks,
    draw_config,
    first_accepted,
    searched_tunables,
)
from lactchain.search.runs import save_best
from lactchain.search.settings import SpaceConfig, TrialsConfig
from lactchain.storage.files import append_json_lines, read_sealed_lines, seal, write_json_lines


class RandomSampler:
    """Proposes settings drawn from their ranges, and learns nothing from how trials end."""

    def __init__(self, config: Any, space: SpaceConfig, seed: int) -> None:
        self.config, self.space = config, space
        self.rng = np.random.default_rng(seed)

    def ask(self) -> Any:
        """The config of the next trial.

        Raises:
            ConfigError: the config class refuses what was proposed.
        """
        return draw_config(self.config, self.space, self.rng)

    def hear(self, step: int, fitness: float, is_last: bool) -> bool:
        """Takes an evaluation of the running trial; whether that is over now, or given up."""
        return is_last


class TPESampler(RandomSampler):
    """Optuna's tree-structured Parzen estimator over the same ranges.

    Optuna's own settings: the first 10 trials are drawn at random, and the pruner spares the first
    5 trials.
    """

    def __init__(self, config: Any, space: SpaceConfig, seed: int, prune: bool = False) -> None:
        import optuna

        super().__init__(config, space, seed)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner(),
        )
        self.outcomes = optuna.trial.TrialState
        self.trial: Any = None

    def ask(self) -> Any:
        """The config of the next trial; one that its class refuses counts for Optuna as failed."""
        return first_accepted(self._propose)

    def _propose(self) -> Any:
        self.trial = self.study.ask()
        config, values = choose_networks(self.config, self.space, self._choose), {}
        for name, wanted in searched_tunables(config, self.space.tunables).items():
            suggest = self.trial.suggest_int if wanted.integer else self.trial.suggest_float
            values[name] = suggest(name, wanted.low, wanted.high, log=wanted.log)
        try:
            return with_tunables(config, values)
        except ConfigError:
            self.study.tell(self.trial, state=self.outcomes.FAIL)
            raise

    def _choose(self, name: str, options: Sequence[Any]) -> Any:
        texts = [str(option) for option in options]
        return options[texts.index(self.trial.suggest_categorical(name, texts))]

    def hear(self, step: int, fitness: float, is_last: bool) -> bool:
        """Takes an evaluation; the last is the objective, unless the pruner gives the trial up."""
        self.trial.report(fitness, step)
        if self.trial.should_prune():  # Optuna takes the last report as its value
            self.study.tell(self.trial, state=self.outcomes.PRUNED)
            return True
        if is_last:
            self.study.tell(self.trial, fitness)
        return is_last


@dataclass(frozen=True)
class Report:
    """An evaluation of a trial.

    Attributes:
        steps: environment steps that it has trained.
        num_env_steps: all steps of all trials so far, with those of all evaluations.
        num_final_env_steps: the same without evaluations before a trial's end.
        is_final: whether the trial is over.
        state: what the agent has learnt.
    """

    trial: int
    steps: int
    config: Any
    fitness: float
    num_env_steps: int
    num_final_env_steps: int
    is_final: bool
    state: Any

    def record(self) -> dict[str, Any]:
        """The report as plain values, but for what was learnt."""
        record = {**vars(self), "tunables": tunable_values(self.config)}
        del record["config"], record["state"]
        return record | {"hidden": list(self.config.hidden), "activation": self.config.activation}


@dataclass
class Trials:
    """Trials of one sampler.

    Attributes:
        number: of trials that are over.
        num_interim_steps: steps of evaluations before a trial's end.
    """

    sampler: RandomSampler
    config: TrialsConfig
    arena: Arena
    number: int = 0
    num_interim_steps: int = 0

    def __iter__(self) -> Iterator[Report]:
        """Evaluations, one after the other."""
        while self.number < self.config.num_trials:
            yield from self._trial()
            self.number += 1

    def replay(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Goes on after whole trials of which there are records; the sampler is told of them again.

        Raises:
            DataError: the sampler proposes other settings than were recorded.
        """
        for record in records:
            if record["trial"] == self.number:
                config = self.sampler.ask()
                self.number += 1
                if tunable_values(config) != record["tunables"]:
                    raise DataError(f"trial {record['trial']}: was of another seed or version")
            is_last = record["steps"] >= self.config.steps_per_trial
            self.sampler.hear(record["steps"], record["fitness"], is_last)
            self.arena.num_env_steps = record["num_env_steps"]
            self.num_interim_steps = record["num_env_steps"] - record["num_final_env_steps"]

    def certify(self, report: Report, target: float) -> bool:
        """Whether an agent that seems to meet the target does so in fresh, uncounted episodes."""
        return report.fitness >= target and self.arena.certify(report) >= target

    def _trial(self) -> Iterator[Report]:
        config, settings, arena = self.sampler.ask(), self.config, self.arena
        with closing(arena.make_envs(config, self.number)) as envs:
            member = Child(config, arena.newborn(config, [arena.seed, self.number]), {})
            final = False
            while not final:
                steps = envs.num_env_steps
                asked = min(settings.steps_per_report, settings.steps_per_trial - steps)
                seed = [arena.seed, self.number, steps]
                progress = steps / settings.steps_per_trial
                [state] = arena.train([member], [envs], asked, seed, progress)
                member = Child(config, state, {})
                fitness, spent = self._judge(member)
                steps = envs.num_env_steps
                final = self.sampler.hear(steps, fitness, steps >= settings.steps_per_trial)
                self.num_interim_steps += 0 if final else spent
                total = arena.num_env_steps
                without = total - self.num_interim_steps
                yield Report(self.number, steps, config, fitness, total, without, final, state)

    def _judge(self, member: Child) -> tuple[float, int]:
        """Fitness (the worst for members that diverged), and the steps that it took."""
        before = self.arena.num_env_steps
        seed = self.arena.selecting_seed(self.number)
        [fitness] = self.arena.judge([member], self.config.num_episodes, seed)
        return float(np.nan_to_num(fitness, nan=-1e9)), self.arena.num_env_steps - before


def sampler_of(config: Any) -> RandomSampler:
    """What proposes the trials of a `SearchConfig`."""
    given = config.subject, config.space, config.run.seed
    if config.method == "random":
        return RandomSampler(*given)
    return TPESampler(*given, config.trials.prune)


def try_out(config: Any, run: Run) -> dict[str, Any]:
    """Trials until the target is met, or the last one is done; the summary.

    A trial that was cut is done again, and comes out the same.
    """
    seed, path = config.run.seed, run.path("trials.jsonl")
    sampler = sampler_of(config)
    trials = Trials(sampler, config.trials, Arena(config.environment, seed))
    lines = whole_trials(read_sealed_lines(path, run.id))
    write_json_lines(path, map(seal, lines, count(), repeat(run.id)))
    trials.replay(lines)
    run.truncate_metrics(trials.arena.num_env_steps if lines else -1)
    check_metrics(run, lines)
    best = max(lines, key=lambda line: line["fitness"], default=None)
    met = best is not None and best["certified"]
    table = GrowingTable()
    with under_way("trial", config.trials.num_trials, most=True) as step:
        step.resumed(trials.number)
        for report in trials if not met else ():
            met = config.target is not None and trials.certify(report, config.target)
            line = {**report.record(), "certified": met}
            if best is None or met or report.fitness > best["fitness"]:
                best = line
                save_best(run, config.environment, report)
            metrics = {"search/best_fitness": best["fitness"], "search/fitness": report.fitness}
            run.log(metrics, step=report.num_env_steps)
            run.mark_metrics()
            # Behind the metrics: what no line tells is done again, and they are cut.
            append_json_lines(path, [seal(line, len(lines), run.id)], synced=True)
            lines.append(line)
            if report.is_final:
                step.at(report.trial + 1)
                shown = {"trial": report.trial, "fitness": report.fitness}
                table.add(shown | {"best": best["fitness"], "steps": f"{report.num_env_steps:,}"})
            if met or run.told_to_end:
                break
    agent = read_agent(run.directory / "best")
    return {
        "method": config.method,
        "seed": seed,
        "num_trials": trials.number,
        "num_env_steps": trials.arena.num_env_steps,
        "target_met": None if config.target is None else met,
        "best/fitness": best["fitness"],
        "best/episode_return": trials.arena.certify(Child(agent.config, take(agent, 0), {})),
        "best/tunables": best["tunables"],
        "best/trial": best["trial"],
    }


def whole_trials(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of trials that came to their end, or met the target."""
    over = {line["trial"] for line in lines if line["is_final"] or line["certified"]}
    return [line for line in lines if line["trial"] in over]


def check_metrics(run: Run, lines: Sequence[dict[str, Any]]) -> None:
    """Refuses metrics that are not what the evaluations of trials came to."""
    best, expected = -np.inf, []
    for line in lines:
        best = line["fitness"] if line["certified"] else max(best, line["fitness"])
        told = {"search/best_fitness": best, "search/fitness": line["fitness"]}
        expected.append({"step": line["num_env_steps"]} | told)
    found = [{k: v for k, v in r.items() if k != "time"} for r in read_metrics(run.directory)]
    if found != expected:
        refuse_unless_inexact(
            f"{run.path('metrics.jsonl')}: missing or damaged, it does not tell what trials.jsonl "
            "does; put a copy back"
        )
