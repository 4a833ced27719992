"""Classic agents as what a search trains and judges, with every environment step counted.

What a member has learnt is a mapping, which can be copied, written down and mutated by itself:

    parts        part → entry → the member's own row (1, …) of an array, or a number that all share
    shapes       part → network → shapes of its arrays; of parameters and of their optimisers
    num_updates  optimiser steps made

Members that agree in all that shapes a computation are trained as one batch, whoever their parents
are.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.baselines.evaluation import evaluate_agent
from lactchain.baselines.member_envs import MemberEnvs, Transition, spaces_of
from lactchain.baselines.population import Population
from lactchain.baselines.settings import own_settings
from lactchain.baselines.state_files import over_leaves
from lactchain.baselines.training import AGENTS, save_agent
from lactchain.errors import Interrupted
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.process import stop_requested
from lactchain.runs.progress import under_way
from lactchain.search.evolution import Individual, Species
from lactchain.search.mutations import OF_NETWORKS, Child

CERTIFYING_EPISODES = 50


class AgentSpecies(Species):
    """Classic agents of one kind that evolve from a config.

    Attributes:
        envs: what the member in each place of a generation plays.
    """

    stored = "num_env_steps", "envs"

    def __init__(self, config: Any, run: Any = None) -> None:  # other species need the run
        super().__init__(config)
        self.world, self.seed = config.environment, config.run.seed
        self.kind, self.spaces = AGENTS[type(self.given)], spaces_of(self.world)
        places = range(self.settings.population_size)
        seeds = [derive_seed(self.seed, "training", place) for place in places]
        sizes, kwargs = (1, self.given.num_envs), self.world.kwargs
        self.envs = [MemberEnvs(self.world.id, *sizes, seed, **kwargs) for seed in seeds]

    def close(self) -> None:
        """Closes the environments of all places."""
        for envs in self.envs:
            envs.close()

    def untrained(self, config: Any, place: int) -> dict[str, Any]:
        """Fresh weights."""
        return take(self.kind([config], *self.spaces, seed=[self.seed, place]), 0)

    def train(self, members: Sequence[Individual], generation: int) -> list[dict[str, Any]]:
        """Trains each member for a generation's steps at least, in as few batches as can be.

        Raises:
            Interrupted: the process was asked to stop.
        """
        num_steps = self.settings.steps_per_generation
        progress = generation / self.settings.num_generations
        trained: dict[int, dict[str, Any]] = {}
        before = sum(envs.num_env_steps for envs in self.envs)
        for places, population in self._populations(members, [self.seed, generation]):
            envs = JoinedEnvs([self.envs[place] for place in places])
            start = envs.members[0].num_env_steps
            with under_way("steps", num_steps) as step:
                while (steps := envs.members[0].num_env_steps - start) < num_steps:
                    if stop_requested():
                        raise Interrupted(stop_requested(), "stopped while members trained")
                    step.at(steps)
                    population.advance(envs, progress)
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
        if kind in OF_NETWORKS:
            return OF_NETWORKS[kind](parent, self.settings.mutation, rng)
        return super().mutate(kind, parent, rng)

    def save(self, champion: Individual, folder: Path) -> dict[str, Any]:
        """Writes the agent that the search would return now."""
        [(_, population)] = self._populations([champion], [0])
        save_agent(folder, population, 0, self.world)
        config = champion.config
        return {"best/hidden": list(config.hidden), "best/activation": config.activation}

    def _populations(
        self, members: Sequence[Individual], seed: Sequence[int]
    ) -> Iterator[tuple[list[int], Population]]:
        """The members as populations of those that fit together, with their places."""
        for places in batches(members):
            own = [members[place] for place in places]
            yield places, join(self.kind, own, self.spaces, [*seed, places[0]])

    def _judge(
        self, members: Sequence[Individual], num_episodes: int, seed: int
    ) -> tuple[list[float], int]:
        """Mean returns, NaN for members whose gradients were not finite; and steps played."""
        returns, num_steps = np.zeros(len(members)), 0
        for places, population in self._populations(members, [0]):
            played = evaluate_agent(population, self.world, num_episodes, seed)
            returns[places] = np.where(population.diverged, np.nan, played.returns.mean(1))
            num_steps += int(played.lengths.sum())
        return returns.tolist(), num_steps


def take(population: Population, member: int) -> dict[str, Any]:
    """A copy of what one member has learnt; see above."""
    state = population.state_dict()
    # Rows (1, …) of arrays (P, …); a number is the same for all members.
    parts = over_leaves(
        lambda value: np.array(value[member : member + 1]) if np.ndim(value) else value,
        state["parts"],
    )
    shapes = {n: part.shapes for n, part in population.parts.items() if hasattr(part, "shapes")}
    return {"parts": parts, "shapes": shapes, "num_updates": state["num_updates"]}


def join(
    kind: type[Population], members: Sequence[Any], spaces: Any, seed: int | Sequence[int]
) -> Population:
    """A population of members, each with a `config` and a `state`, that `batches` finds to fit.

    The spaces are those of `spaces_of`.
    """
    configs, states = zip(*((member.config, member.state) for member in members), strict=True)
    population = kind(configs, *spaces, seed)
    population.num_updates = states[0]["num_updates"]
    parts = over_leaves(
        lambda *rows: np.concatenate(rows) if np.ndim(rows[0]) else rows[0],
        *(state["parts"] for state in states),
    )
    for name, part in population.parts.items():
        part.load_state_dict(parts[name])
    return population


def batches(members: Sequence[Any]) -> list[list[int]]:
    """Places of members, each with a `config` and a `state`, that train in one batch at no loss.

    They agree in every field that is not their own, and in how much they have stored.
    """
    found: dict[tuple, list[int]] = {}
    for place, member in enumerate(members):
        own = own_settings(type(member.config))
        fields = tuple((k, value) for k, value in vars(member.config).items() if k not in own)
        stored = str(over_leaves(lambda value: np.shape(value) or value, member.state["parts"]))
        found.setdefault((fields, stored), []).append(place)
    return list(found.values())


class JoinedEnvs:
    """What several members play, each its own copies, behind the interface of `MemberEnvs`."""

    def __init__(self, members: Sequence[MemberEnvs]) -> None:
        self.members = members

    @property
    def observations(self) -> np.ndarray:
        """(P, N, …), where the next step begins."""
        return np.concatenate([member.observations for member in self.members])

    def step(self, actions: np.ndarray) -> Transition:
        """Plays one action (P, N, …) in every copy."""
        steps = [m.step(row[None]) for m, row in zip(self.members, actions, strict=True)]
        columns = zip(*(vars(step).values() for step in steps), strict=True)
        return Transition(*map(np.concatenate, columns))
