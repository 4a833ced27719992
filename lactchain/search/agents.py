"""Classic agents as what a search trains and judges, with every environment step counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from lactchain.baselines.evaluation import evaluate_agent
from lactchain.baselines.member_envs import MemberEnvs, spaces_of
from lactchain.baselines.population import Population
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.training import AGENTS, config_of
from lactchain.errors import Interrupted
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.process import stop_requested
from lactchain.runs.progress import under_way
from lactchain.search import mutations
from lactchain.search.evolution import Child, Individual
from lactchain.search.members import JoinedEnvs, Learnt, batches, join, take
from lactchain.search.settings import EvolutionConfig, SpaceConfig

CERTIFYING_EPISODES = 50


def agent_class(config: Any) -> type[Population]:
    """The agent that a config belongs to."""
    return next(agent for kind, agent in AGENTS.items() if isinstance(config, kind))


class Member(Protocol):
    """Whoever is trained and judged: an individual, a child, a report of a trial."""

    config: Any
    state: Learnt


@dataclass
class Arena:
    """Where agents are trained and judged, all by one seed.

    `num_env_steps` counts for the whole search: training and selecting evaluations of all members.
    """

    world: WorldConfig
    seed: int
    num_env_steps: int = 0

    @cached_property
    def spaces(self) -> tuple[spaces.Space, spaces.Space]:
        """Of observations and of actions, of a single environment."""
        return spaces_of(self.world)

    def make_envs(self, config: Any, place: int) -> MemberEnvs:
        """The copies of the environment that a member plays."""
        seed = derive_seed(self.seed, "training", place)
        return MemberEnvs(self.world.id, 1, config.num_envs, seed, **self.world.kwargs)

    def newborn(self, config: Any, seed: Sequence[int]) -> Learnt:
        """The state of a member that has not trained yet."""
        return take(agent_class(config)([config], *self.spaces, seed=list(seed)), 0)

    def train(
        self,
        members: Sequence[Member],
        envs: Sequence[MemberEnvs],
        num_steps: int,
        seed: Sequence[int],
        progress: float = 0.0,
    ) -> list[Learnt]:
        """Trains members for at least so many steps each, in as few batches as can be.

        Raises:
            Interrupted: the process was asked to stop.
        """
        trained: dict[int, Learnt] = {}
        before = sum(one.num_env_steps for one in envs)
        for places, population in self._populations(members, seed):
            joined = JoinedEnvs([envs[place] for place in places])
            start = joined.members[0].num_env_steps
            with under_way("steps", num_steps) as step:
                while (steps := joined.members[0].num_env_steps - start) < num_steps:
                    if stop_requested():
                        raise Interrupted(stop_requested(), "stopped while members trained")
                    step.at(steps)
                    population.advance(joined, progress)
            trained |= {place: take(population, row) for row, place in enumerate(places)}
        for one in envs:
            one.pop_episodes()
        self.num_env_steps += sum(one.num_env_steps for one in envs) - before
        return [trained[place] for place in range(len(members))]

    def judge(
        self, members: Sequence[Member], num_episodes: int, seed: int, counts: bool = True
    ) -> list[float]:
        """Mean returns of greedy episodes; NaN for members whose gradients were not finite."""
        outcomes = self.judgements(members, num_episodes, seed, counts)
        return [fitness for fitness, _ in outcomes]

    def judgements(
        self, members: Sequence[Member], num_episodes: int, seed: int, counts: bool = True
    ) -> list[tuple[float, int]]:
        """The same, each with the environment steps that it took."""
        returns, steps = np.zeros(len(members)), np.zeros(len(members), dtype=int)
        for places, population in self._populations(members, [0]):
            evaluation = evaluate_agent(population, self.world, num_episodes, seed)
            returns[places] = np.where(population.diverged, np.nan, evaluation.returns.mean(1))
            steps[places] = evaluation.lengths.sum(1)
            self.num_env_steps += counts * evaluation.num_env_steps
        return list(zip(returns.tolist(), steps.tolist(), strict=True))

    def certify(self, member: Member) -> float:
        """Mean return of many episodes that nothing was selected by; they are not counted."""
        seed = derive_seed(self.seed, "certifying")
        return self.judge([member], CERTIFYING_EPISODES, seed, counts=False)[0]

    def selecting_seed(self, number: int) -> int:
        """Where the episodes of a selecting evaluation start; other ones each time."""
        return derive_seed(self.seed, "selecting", number)

    def _populations(
        self, members: Sequence[Member], seed: Sequence[int]
    ) -> Iterator[tuple[list[int], Population]]:
        """The members as populations of those that fit together, with their places."""
        for places in batches(members):
            own = [members[place] for place in places]
            yield places, join(agent_class(own[0].config), own, *self.spaces, [*seed, places[0]])


class AgentSpecies:
    """Classic agents of one kind that evolve from a config; see `evolution.Species`."""

    def __init__(
        self,
        config: Any,
        world: WorldConfig,
        space: SpaceConfig,
        settings: EvolutionConfig,
        seed: int = 0,
    ) -> None:
        self.config, self.space, self.settings = config, space, settings
        self.arena, places = Arena(world, seed), range(settings.population_size)
        self.envs = [self.arena.make_envs(config, place) for place in places]

    @property
    def num_env_steps(self) -> int:
        """Steps of training and of selecting evaluations so far."""
        return self.arena.num_env_steps

    def newcomer(self, place: int, rng: np.random.Generator) -> Child:
        """A member with fresh weights; see `EvolutionConfig.start` for its config."""
        config, change = mutations.first_config(self.config, self.space, self.settings, place, rng)
        return Child(config, self.arena.newborn(config, [self.arena.seed, place]), change)

    def keep(self, members: Sequence[Individual]) -> None:
        """Nothing goes: states are in memory, and nowhere else."""

    def train(self, members: Sequence[Individual], generation: int) -> list[Learnt]:
        """A generation's training."""
        settings, seed = self.settings, [self.arena.seed, generation]
        progress = generation / settings.num_generations
        return self.arena.train(members, self.envs, settings.steps_per_generation, seed, progress)

    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """Mean returns over the same episodes for all."""
        seed = self.arena.selecting_seed(generation)
        return self.arena.judge(members, self.settings.num_episodes, seed)

    def certify(self, member: Individual) -> float:
        """Mean return over fresh episodes, which are not counted."""
        return self.arena.certify(member)

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
        return {
            "num_env_steps": self.arena.num_env_steps,
            "envs": [envs.state_dict() for envs in self.envs],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        self.arena.num_env_steps = state["num_env_steps"]
        for envs, envs_state in zip(self.envs, state["envs"], strict=True):
            envs.load_state_dict(envs_state)
