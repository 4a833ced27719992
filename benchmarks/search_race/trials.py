"""Problems, and their trials: each is played once, however many contenders look at it.

Test seeds are 0, 1, …; every setting was chosen on seeds from 100 on, which no table shows.

A trial is known by its seed, its number and its config; what it comes to depends on nothing else,
so random search and whatever prunes the same random draws share their trials. A trial is not played
beyond its first certified judgement, since nobody's clock runs longer.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from lactchain.config.tunable import tunable_values
from lactchain.search.evolution import Species
from lactchain.search.mutations import draw_config
from lactchain.search.settings import EvolutionConfig, SpaceConfig
from lactchain.storage.files import append_json_lines, read_json_lines, write_json_lines


class Nursery(Protocol):
    """Trains and judges agents round by round, each from the start."""

    def begin(self, config: Any, number: int) -> Any:
        """An agent that has not trained yet; the number gives it chance of its own."""

    def train(self, agents: list[Any], num_steps: int) -> list[int]:
        """Lets agents that began together train for so many steps each; the steps played."""

    def judge(self, agents: list[Any]) -> list[tuple[float, int]]:
        """Mean return and steps of each agent's greedy episodes."""

    def certify(self, agent: Any) -> float:
        """Mean return of an agent's fresh episodes, which nobody counts."""


@dataclass(frozen=True)
class Problem:
    """A search, and the terms on which all contenders search.

    Attributes:
        subject: the config whose tunables are searched.
        target: mean return of fresh, uncounted episodes that certifies an agent.
        budget: environment steps of a run at most, of training and of judging.
        moment: steps between two moments at which contenders may show an agent.
        trial_steps: what a trial trains at most.
        report_steps: what a trial trains between two of its judgements; not below `moment`.
        block: random trials that are trained side by side, as members of one population.
        num_seeds: test seeds.
    """

    name: str
    title: str
    subject: Any
    space: SpaceConfig
    evolution: EvolutionConfig
    target: float
    budget: int
    moment: int
    trial_steps: int
    report_steps: int
    block: int = 1
    num_seeds: int = 20

    @property
    def num_reports(self) -> int:
        """Judgements of a trial that nobody gives up."""
        return -(-self.trial_steps // self.report_steps)

    def drawn(self, seed: int, number: int) -> Any:
        """The config of a random trial, the same for every contender of the seed."""
        return draw_config(self.subject, self.space, np.random.default_rng([seed, number]))

    def nursery(self, seed: int, folder: Path) -> Nursery:
        """Where the trials of a seed are trained and judged."""
        raise NotImplementedError

    def species(self, seed: int, folder: Path) -> Species:
        """What evolves."""
        raise NotImplementedError


class Report(NamedTuple):
    """A judgement of a trial: steps of training since the last one, and those of judging."""

    trained: int
    judged: int
    fitness: float
    certified: bool


@dataclass
class Trial:
    """What is known of a trial: its judgements so far, and whether there are no more."""

    seed: int
    number: int
    config: dict[str, Any]
    reports: list[Report] = field(default_factory=list)
    is_over: bool = False
    cpu_seconds: float = 0.0

    @property
    def key(self) -> str:
        """What it is known by."""
        return json.dumps([self.seed, self.number, self.config], sort_keys=True)


class OutOfTime(Exception):
    """The race has run for as long as it was given."""


class Trials:
    """The trials of a problem, in a file of JSON lines; of two lines of one trial the later counts.

    Args:
        deadline: `time.monotonic()` after which no more steps are played.

    Raises:
        OutOfTime: the deadline has passed; what was played is written down.
    """

    def __init__(self, problem: Problem, folder: Path, deadline: float = float("inf")) -> None:
        self.problem, self.folder, self.deadline = problem, folder, deadline
        self.path = folder / "trials.jsonl"
        self.known: dict[str, Trial] = {}
        self.nurseries: dict[int, Nursery] = {}
        for line in read_json_lines(self.path):
            line["reports"] = [Report(*report) for report in line["reports"]]
            trial = Trial(**line)
            self.known[trial.key] = trial

    def reports(self, seed: int, number: int, config: Any) -> Iterator[Report]:
        """The judgements of a trial one after the other; what is not known yet is played."""
        trial = Trial(seed, number, searched_values(self.problem, config))
        known = self.known.get(trial.key, trial)
        yield from known.reports
        if known.is_over:
            return
        if self.problem.block > 1 and config == self.problem.drawn(seed, number):
            self._play_block(seed, number - number % self.problem.block)
            yield from self.known[trial.key].reports[len(known.reports) :]
            return
        yield from self._go_on(trial, config, len(known.reports))

    def _go_on(self, trial: Trial, config: Any, num_known: int) -> Iterator[Report]:
        """The judgements after the known ones; the trial begins again to come to them."""
        try:
            for [report] in self._play({trial.number: config}, [trial]):
                if len(trial.reports) > num_known:
                    yield report
        finally:
            if len(trial.reports) > num_known:
                self._write([trial])

    def _play_block(self, seed: int, first: int) -> None:
        """Random trials with neighbouring numbers, as members of one population."""
        numbers = range(first, first + self.problem.block)
        configs = {number: self.problem.drawn(seed, number) for number in numbers}
        trials = [Trial(seed, n, searched_values(self.problem, c)) for n, c in configs.items()]
        for _ in self._play(configs, trials):
            pass
        self._write(trials)

    def _play(self, configs: Mapping[int, Any], trials: list[Trial]) -> Iterator[list[Report]]:
        """Trains and judges trials round by round, those of them that are not certified yet."""
        nursery, problem = self._nursery(trials[0].seed), self.problem
        agents = [nursery.begin(config, number) for number, config in configs.items()]
        pairs = list(zip(agents, trials, strict=True))
        for number in range(problem.num_reports):
            if time.monotonic() > self.deadline:
                raise OutOfTime
            started = time.process_time()
            steps = min(problem.report_steps, problem.trial_steps - number * problem.report_steps)
            own = [agent for agent, _ in pairs]
            outcomes = zip(nursery.train(own, steps), nursery.judge(own), strict=True)
            reports = []
            for (agent, trial), (trained, (fitness, judged)) in zip(pairs, outcomes, strict=True):
                certified = fitness >= problem.target and nursery.certify(agent) >= problem.target
                reports.append(Report(trained, judged, fitness, certified))
                trial.reports.append(reports[-1])
                trial.is_over = certified or number + 1 == problem.num_reports
            for trial in (trial for _, trial in pairs):
                trial.cpu_seconds += (time.process_time() - started) / len(pairs)
            yield reports
            pairs = [pair for pair in pairs if not pair[1].is_over]
            if not pairs:
                return

    def _nursery(self, seed: int) -> Nursery:
        if seed not in self.nurseries:
            self.nurseries[seed] = self.problem.nursery(seed, self.folder)
        return self.nurseries[seed]

    def _write(self, trials: list[Trial]) -> None:
        self.known |= {trial.key: trial for trial in trials}
        append_json_lines(self.path, map(asdict, trials))


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file to which others will be added; a line that was cut is taken away."""
    lines = read_json_lines(path)
    write_json_lines(path, lines)
    return lines


def searched_values(problem: Problem, config: Any) -> dict[str, Any]:
    """What a trial of a problem differs in from others."""
    names, values = problem.space.tunables, tunable_values(config)
    found: dict[str, Any] = {name: values[name] for name in names or values}
    if problem.space.architectures:
        found["hidden"] = list(config.hidden)
    if problem.space.activations:
        found["activation"] = config.activation
    return found
