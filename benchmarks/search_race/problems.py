"""What a problem is: what is searched, what certifies, and the terms that hold for everybody.

Test seeds are 0, 1, …; every setting was chosen on seeds from `TUNING` on, which no table shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.search.evolution import Species
from lactchain.search.mutations import draw_config
from lactchain.search.settings import EvolutionConfig, SpaceConfig

TUNING = 100
"""The first of the seeds that settings were chosen on."""


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


class Nursery:
    """Trains and judges agents round by round, each from the start."""

    def begin(self, config: Any, number: int) -> Any:
        """An agent that has not trained yet; the number gives it chance of its own."""
        raise NotImplementedError

    def train(self, agents: list[Any], num_steps: int) -> list[int]:
        """Lets agents that began together train for so many steps each; the steps played."""
        raise NotImplementedError

    def judge(self, agents: list[Any]) -> list[tuple[float, int]]:
        """Mean return and steps of each agent's greedy episodes."""
        raise NotImplementedError

    def certify(self, agent: Any) -> float:
        """Mean return of an agent's fresh episodes, which nobody counts."""
        raise NotImplementedError
