"""Classic agents as what a search trains and judges, with every environment step counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.baselines.evaluation import evaluate_agent
from lactchain.baselines.member_envs import MemberEnvs, spaces_of
from lactchain.baselines.population import Population
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.training import AGENTS, config_of, save_agent
from lactchain.errors import Interrupted
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.process import stop_requested
from lactchain.runs.progress import under_way
from lactchain.search import mutations
from lactchain.search.evolution import Child, Individual
from lactchain.search.members import JoinedEnvs, Learnt, batches, join, take
from lactchain.search.settings import EvolutionConfig, SpaceConfig

CERTIFYING_EPISODES = 50


class AgentSpecies:
    """Classic agents of one kind that evolve from a config; see `evolution.Species`.

    Attributes:
        envs: what the member in each place of a generation plays.
        num_env_steps: training and selecting evaluations of all members so far.
    """

    def __init__(
        self,
        config: Any,
        world: WorldConfig,
        space: SpaceConfig,
        settings: EvolutionConfig,
        seed: int = 0,
    ) -> None:
        self.config, self.world, self.space, self.settings = config, world, space, settings
        self.seed, self.kind, self.spaces = seed, AGENTS[type(config)], spaces_of(world)
        self.num_env_steps = 0
        seeds = [derive_seed(seed, "training", n) for n in range(settings.population_size)]
        self.envs = [MemberEnvs(world.id, 1, config.num_envs, s, **world.kwargs) for s in seeds]

    def newcomer(self, place: int, rng: np.random.Generator) -> Child:
        """A member with fresh weights; see `EvolutionConfig.start` for its config."""
        config, change = mutations.first_config(self.config, self.space, self.settings, place, rng)
        population = self.kind([config], *self.spaces, seed=[self.seed, place])
        return Child(config, take(population, 0), change)

    def keep(self, members: Sequence[Individual]) -> None:
        """Nothing goes: states are in memory, and nowhere else."""

    def train(self, members: Sequence[Individual], generation: int) -> list[Learnt]:
        """Trains each member for a generation's steps at least, in as few batches as can be.

        Raises:
            Interrupted: the process was asked to stop.
        """
        progress = generation / self.settings.num_generations
        trained: dict[int, Learnt] = {}
        before = sum(envs.num_env_steps for envs in self.envs)
        for places, population in self._populations(members, [self.seed, generation]):
            joined = JoinedEnvs([self.envs[place] for place in places])
            self._train(population, joined, progress)
            trained |= {place: take(population, row) for row, place in enumerate(places)}
        for envs in self.envs:
            envs.pop_episodes()
        self.num_env_steps += sum(envs.num_env_steps for envs in self.envs) - before
        return [trained[place] for place in range(len(members))]

    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """Mean returns over the same episodes for all, other ones in each generation."""
        seed = derive_seed(self.seed, "selecting", generation)
        fitness, num_steps = self._judge(members, self.settings.num_episodes, seed)
        self.num_env_steps += num_steps
        return fitness

    def certify(self, member: Individual) -> float:
        """Mean return over episodes that nothing was selected by; they are not counted."""
        seed = derive_seed(self.seed, "certifying")
        [fitness], _ = self._judge([member], CERTIFYING_EPISODES, seed)
        return fitness

    def mutate(self, kind: str, parent: Individual, rng: np.random.Generator) -> Child | None:
        """A mutant of any of the kinds."""
        settings, config, learnt = self.settings.mutation, parent.config, parent.state
        if kind == "hyper":
            config, change = mutations.mutate_tunables(config, self.space, settings, rng)
            return Child(config, learnt, change)
        if kind == "activation":
            return mutations.mutate_activation(config, learnt, rng)
        if kind == "parameters":
            return mutations.mutate_parameters(config, learnt, settings, rng)
        return mutations.mutate_architecture(config, learnt, settings, rng)

    def encode(self, config: Any, state: Learnt) -> dict[str, Any]:
        """A member as arrays and plain values."""
        return {"config": asdict(config), **vars(state)}

    def decode(self, body: Mapping[str, Any]) -> tuple[Any, Learnt]:
        """The config and the state that `encode` was given."""
        config = config_of(type(self.config), body["config"])
        return config, Learnt(body["parts"], body["shapes"], body["num_updates"])

    def save(self, champion: Individual, folder: Path) -> None:
        """Writes the agent that the search would return now."""
        [(_, population)] = self._populations([champion], [0])
        save_agent(folder, population, 0, self.world)

    def facts(self, champion: Individual) -> dict[str, Any]:
        """What a summary says of the champion beside its tunables."""
        config = champion.config
        return {"best/hidden": list(config.hidden), "best/activation": config.activation}

    def close(self) -> None:
        """Closes the environments."""
        for envs in self.envs:
            envs.close()

    def state_dict(self) -> dict[str, Any]:
        """Environments and the count of steps."""
        envs = [envs.state_dict() for envs in self.envs]
        return {"num_env_steps": self.num_env_steps, "envs": envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        self.num_env_steps = state["num_env_steps"]
        for envs, envs_state in zip(self.envs, state["envs"], strict=True):
            envs.load_state_dict(envs_state)

    def _populations(
        self, members: Sequence[Individual], seed: Sequence[int]
    ) -> Iterator[tuple[list[int], Population]]:
        """The members as populations of those that fit together, with their places."""
        for places in batches(members):
            own = [members[place] for place in places]
            yield places, join(self.kind, own, *self.spaces, [*seed, places[0]])

    def _train(self, population: Population, envs: JoinedEnvs, progress: float) -> None:
        num_steps, start = self.settings.steps_per_generation, envs.members[0].num_env_steps
        with under_way("steps", num_steps) as step:
            while (steps := envs.members[0].num_env_steps - start) < num_steps:
                if stop_requested():
                    raise Interrupted(stop_requested(), "stopped while members trained")
                step.at(steps)
                population.advance(envs, progress)

    def _judge(
        self, members: Sequence[Individual], num_episodes: int, seed: int
    ) -> tuple[list[float], int]:
        """Mean returns, NaN for members whose gradients were not finite; and steps played."""
        returns, num_steps = np.zeros(len(members)), 0
        for places, population in self._populations(members, [0]):
            evaluation = evaluate_agent(population, self.world, num_episodes, seed)
            returns[places] = np.where(population.diverged, np.nan, evaluation.returns.mean(1))
            num_steps += evaluation.num_env_steps
        return returns.tolist(), num_steps
