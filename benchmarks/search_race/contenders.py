"""Who races: our evolution, and trials whose settings are proposed and given up by others.

- random: settings drawn from their ranges;
- halving, hyperband: the same draws, given up by Optuna's pruners (reduction 3; Jamieson &
  Talwalkar 2016, Li et al. 2018);
- tpe: Optuna's TPE (Bergstra et al. 2011), its settings: the first 10 draws are those of random;
- tpe_hyperband: TPE with the pruner.

What a sampler learns from is the judgement at a trial's end.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from shutil import rmtree
from typing import Any

import numpy as np

from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.config.tunable import with_tunables
from lactchain.errors import ConfigError
from lactchain.search.evolution import Evolution
from lactchain.search.mutations import choose_networks, first_accepted, searched_tunables
from search_race.trials import OutOfTime, Problem, Trials, searched_values

NUM_DRAWN = 10
"""Trials that samplers draw at random before they learn from them (Optuna's default)."""
REDUCTION = 3
"""One of so many trials goes on at each rung."""


@dataclass
class Clock:
    """How long a contender has run; it is asked at every `moment` steps of its own.

    Attributes:
        total: steps of training and of judging.
        solved: the moment at which it showed an agent that was certified.
        points: [steps, best judgement so far], where that grew.
    """

    moment: int
    budget: int
    total: int = 0
    solved: int | None = None
    points: list[list[float]] = field(default_factory=list)

    def hear(self, steps: int, fitness: float, certified: bool) -> None:
        """So many more steps led to a judgement, which is shown at the next moment."""
        self.total += steps
        if not self.points or fitness > self.points[-1][1]:
            self.points.append([self.total, fitness])
        moment = math.ceil(self.total / self.moment) * self.moment
        if certified and moment <= self.budget:
            self.solved = moment

    @property
    def is_over(self) -> bool:
        """Whether an agent was certified, or the budget is spent."""
        return self.solved is not None or self.total >= self.budget

    @property
    def steps(self) -> int:
        """What the run has cost."""
        return self.solved or min(self.total, self.budget)


# --- trials --------------------------------------------------------------------------------------


class Drawn:
    """Random search, and what every other sampler begins with."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed = problem, seed

    def ask(self, number: int) -> Any:
        """The config of the trial of this number."""
        return self.problem.drawn(self.seed, number)

    def hear(self, number: int, fitness: float, is_last: bool) -> bool:
        """Takes the judgement of the running trial with this number, from 1; whether it is over."""
        return is_last


class Pruned(Drawn):
    """The draws of random search, given up by one of Optuna's pruners."""

    def __init__(self, problem: Problem, seed: int, pruner: str | None, sampler: Any = None):
        import optuna

        super().__init__(problem, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        most = problem.num_reports
        pruners = {
            None: optuna.pruners.NopPruner,
            "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(1, REDUCTION),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(1, most, REDUCTION),
        }
        # The name decides which bracket of Hyperband a trial falls into.
        self.study = optuna.create_study(
            study_name=str(seed), direction="maximize", pruner=pruners[pruner](), sampler=sampler
        )
        self.failed = optuna.trial.TrialState.FAIL
        self.pruned = optuna.trial.TrialState.PRUNED
        self.trial: Any = None

    def ask(self, number: int) -> Any:
        """The draw of this number, as a trial of the study."""
        self.trial = self.study.ask()
        return super().ask(number)

    def hear(self, number: int, fitness: float, is_last: bool) -> bool:
        """Takes a judgement; the last is the trial's value, unless the pruner gives it up."""
        self.trial.report(fitness, number)
        if not is_last and self.trial.should_prune():
            self.study.tell(self.trial, state=self.pruned)
            return True
        if is_last:
            self.study.tell(self.trial, fitness)
        return is_last


class TPE(Pruned):
    """Optuna's TPE after the first draws of random search."""

    def __init__(self, problem: Problem, seed: int, pruner: str | None = None) -> None:
        import optuna

        sampler = optuna.samplers.TPESampler(n_startup_trials=NUM_DRAWN, seed=seed)
        super().__init__(problem, seed, pruner, sampler)

    def ask(self, number: int) -> Any:
        """A draw, and later on what the estimator proposes."""
        if number < NUM_DRAWN:
            values = searched_values(self.problem, self.problem.drawn(self.seed, number))
            self.study.enqueue_trial({name: as_choice(value) for name, value in values.items()})
        return first_accepted(self._propose)

    def _propose(self) -> Any:
        self.trial = self.study.ask()
        problem, values = self.problem, {}
        config = choose_networks(problem.subject, problem.space, self._choose)
        for name, wanted in searched_tunables(config, problem.space.tunables).items():
            suggest = self.trial.suggest_int if wanted.integer else self.trial.suggest_float
            values[name] = suggest(name, wanted.low, wanted.high, log=wanted.log)
        try:
            return with_tunables(config, values)
        except ConfigError:  # such as a batch beyond a rollout; drawn again
            self.study.tell(self.trial, state=self.failed)
            raise

    def _choose(self, name: str, options: Sequence[Any]) -> Any:
        texts = [as_choice(option) for option in options]
        return options[texts.index(self.trial.suggest_categorical(name, texts))]


def as_choice(value: Any) -> Any:
    """A value as Optuna can hold it: layers as text, numbers as they are."""
    return str(value) if isinstance(value, list) else value


# --- runs ----------------------------------------------------------------------------------------


def try_out(problem: Problem, seed: int, trials: Trials, sampler: Drawn) -> Clock:
    """Trials until one is certified, or the budget is spent."""
    clock = Clock(problem.moment, problem.budget)
    for number in count():
        reports = trials.reports(seed, number, sampler.ask(number))
        for place, report in enumerate(reports, start=1):
            clock.hear(report.trained + report.judged, report.fitness, report.certified)
            if clock.is_over:
                reports.close()
                return clock
            if sampler.hear(place, report.fitness, place == problem.num_reports):
                reports.close()
                break


def evolve(problem: Problem, seed: int, trials: Trials) -> Clock:
    """Generations until the fittest of one is certified, or the budget is spent.

    Out of time it leaves a checkpoint, which the race goes on from.
    """
    species, folder = problem.species(seed, trials.folder), trials.folder / f"evolution-{seed}"
    evolution = Evolution(species, problem.evolution, seed)
    clock = Clock(problem.moment, problem.budget)
    if (state := load_checkpoint(folder)) is not None:
        evolution.load_state_dict(state["evolution"])
        clock = Clock(**state["clock"])
    while not clock.is_over:
        if time.monotonic() > trials.deadline:
            state = {"evolution": evolution.state_dict(), "clock": asdict(clock)}
            save_checkpoint(folder, evolution.number, state, metrics={})
            raise OutOfTime
        generation = evolution.advance()
        best = max(generation.members, key=lambda m: np.nan_to_num(m.fitness, nan=-1e9))
        certified = best.fitness >= problem.target and species.certify(best) >= problem.target
        clock.hear(generation.num_env_steps - clock.total, best.fitness, certified)
    species.close()
    rmtree(folder, ignore_errors=True)
    return clock


def _sampled(make: Callable[[Problem, int], Drawn]) -> Callable[[Problem, int, Trials], Clock]:
    return lambda problem, seed, trials: try_out(problem, seed, trials, make(problem, seed))


CONTENDERS: dict[str, Callable[[Problem, int, Trials], Clock]] = {
    "evolution": evolve,
    "random": _sampled(Drawn),
    "halving": _sampled(partial(Pruned, pruner="halving")),
    "hyperband": _sampled(partial(Pruned, pruner="hyperband")),
    "tpe": _sampled(TPE),
    "tpe_hyperband": _sampled(partial(TPE, pruner="hyperband")),
}
NAMES = {
    "evolution": "our evolution", "random": "random search", "halving": "successive halving",
    "hyperband": "Hyperband", "tpe": "TPE", "tpe_hyperband": "TPE with Hyperband", "smac": "SMAC",
}  # fmt: skip
"""Of SMAC (Lindauer et al. 2022) there are runs, and no code any more."""
