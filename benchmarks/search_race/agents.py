"""Classic agents as problems of the race, side by side where they fit into one population.

- cartpole: PPO over the ranges of rl-baselines3-zoo's sampler today, where most draws are good;
- wide: PPO over ranges as somebody gives them who knows nothing, where few draws are good.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.settings import PPOConfig, WorldConfig
from lactchain.config.tunable import tunable
from lactchain.search.agents import AgentSpecies, Arena
from lactchain.search.evolution import Species
from lactchain.search.members import Learnt
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from search_race.trials import Nursery, Problem


@dataclass(frozen=True)
class AgentProblem(Problem):
    """A search over classic agents in a world."""

    world: WorldConfig = WorldConfig("CartPole-v1")

    def nursery(self, seed: int, folder: Path) -> Nursery:
        """Of populations."""
        return AgentNursery(self, seed)

    def species(self, seed: int, folder: Path) -> Species:
        """Agents of the subject's class."""
        return AgentSpecies(self.subject, self.world, self.space, self.evolution, seed)


@dataclass
class Learner:
    """An agent on its way, with its own copies of the environment."""

    config: Any
    state: Learnt
    envs: MemberEnvs
    number: int


class AgentNursery(Nursery):
    """Classic agents; the chance of a round is that of the first agent's number."""

    def __init__(self, problem: AgentProblem, seed: int) -> None:
        self.problem, self.seed, self.arena = problem, seed, Arena(problem.world, seed)

    def begin(self, config: Any, number: int) -> Learner:
        """With weights and environments of the number's own."""
        state = self.arena.newborn(config, [self.seed, number])
        return Learner(config, state, self.arena.make_envs(config, number), number)

    def train(self, agents: Sequence[Learner], num_steps: int) -> list[int]:
        """In as few populations as can be."""
        before = [agent.envs.num_env_steps for agent in agents]
        seed = [self.seed, agents[0].number, before[0]]
        progress = before[0] / self.problem.trial_steps
        envs = [agent.envs for agent in agents]
        states = self.arena.train(agents, envs, num_steps, seed, progress)
        for agent, state in zip(agents, states, strict=True):
            agent.state = state
        return [agent.envs.num_env_steps - b for agent, b in zip(agents, before, strict=True)]

    def judge(self, agents: Sequence[Learner]) -> list[tuple[float, int]]:
        """Episodes from the same starts for all rounds and agents; the worst where one diverged."""
        seed = self.arena.selecting_seed(agents[0].number)
        outcomes = self.arena.judgements(agents, self.problem.evolution.num_episodes, seed)
        return [(float(np.nan_to_num(fitness, nan=-1e9)), steps) for fitness, steps in outcomes]

    def certify(self, agent: Learner) -> float:
        """From starts that nothing was selected by."""
        return self.arena.certify(agent)


@dataclass(frozen=True)
class ZooPPOConfig(PPOConfig):
    """PPO with the ranges of rl_zoo3/hyperparams_opt.py at 0a9df50.

    Departures from it, for all alike: rollouts have one length; discount, decay of advantages, size
    of batches and number of epochs are any numbers between the zoo's least and greatest.
    """

    learning_rate: float = tunable(3e-4, 1e-5, 2e-3, log=True)
    gamma: float = tunable(0.99, 0.97, 0.9999)
    gae_lambda: float = tunable(0.95, 0.9, 0.9999)
    entropy_coef: float = tunable(0.0, 1e-8, 0.1, log=True)
    max_grad_norm: float = tunable(0.5, 0.3, 2.0)
    batch_size: int = tunable(64, 32, 512, log=True, integer=True)


@dataclass(frozen=True)
class WidePPOConfig(PPOConfig):
    """PPO with ranges as of somebody who knows nothing of it."""

    learning_rate: float = tunable(3e-4, 1e-7, 1.0, log=True)
    gamma: float = tunable(0.99, 1e-4, 0.9999)
    gae_lambda: float = tunable(0.95, 0.0, 1.0)
    clip_range: float = tunable(0.2, 0.01, 1.0, log=True)
    entropy_coef: float = tunable(0.01, 1e-6, 10.0, log=True)
    value_coef: float = tunable(0.5, 1e-3, 10.0, log=True)
    max_grad_norm: float = tunable(0.5, 1e-2, 10.0, log=True)


CARTPOLE = AgentProblem(
    name="cartpole",
    title="CartPole, PPO, ranges of rl-baselines3-zoo",
    subject=ZooPPOConfig(num_envs=8, num_steps=32),  # 256 rows: larger batches are drawn again
    space=SpaceConfig(
        [
            "learning_rate", "gamma", "gae_lambda", "clip_range", "entropy_coef", "max_grad_norm",
            "batch_size", "num_epochs",
        ],
        architectures=[[64], [64, 64], [256, 256]],
        activations=["tanh", "relu"],
    ),
    evolution=EvolutionConfig(
        population_size=6, tournament_size=3, num_generations=1000, steps_per_generation=2048,
        num_episodes=2, elite="generation", survivors=0.34, fewest_members=1, patience=5,
        judge_champion=False,
        mutation=MutationConfig(
            weights={"none": 0.2, "hyper": 0.7, "architecture": 0.05, "activation": 0.05},
            tunable_step=0.2, num_tunables=9,
        ),
    ),
    target=475.0, budget=400_000, moment=2_000, trial_steps=100_000, report_steps=10_000,
    num_seeds=50,
)  # fmt: skip

WIDE = AgentProblem(
    name="wide",
    title="CartPole, PPO, wide ranges",
    subject=WidePPOConfig(num_envs=8, num_steps=32, batch_size=64, num_epochs=10, hidden=(64,)),
    space=SpaceConfig(
        [
            "learning_rate", "gamma", "gae_lambda", "clip_range", "entropy_coef", "value_coef",
            "max_grad_norm",
        ]
    ),
    evolution=EvolutionConfig(
        population_size=24, tournament_size=3, num_generations=1000, steps_per_generation=2048,
        num_episodes=2, elite="generation", survivors=0.4, fewest_members=2, patience=4,
        judge_champion=False,
        mutation=MutationConfig({"none": 0.2, "hyper": 0.8}, tunable_step=0.1, num_tunables=7),
    ),
    target=475.0, budget=1_000_000, moment=2_000, trial_steps=20_000, report_steps=5_000,
    block=16, num_seeds=20,
)  # fmt: skip
