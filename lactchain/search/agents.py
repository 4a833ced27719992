"""Classic agents as what a search trains and judges, with every environment step counted.

What a member has learnt is a mapping, which can be copied, written down and mutated by itself:

    parts        part → entry → the member's own row (1, …) of an array, or a number that all share
    shapes       part → network → shapes of its arrays; of parameters and of their optimisers
    num_updates  optimiser steps made

Members train one after the other: few of them agree in all that shapes a computation, such as the
rows of a batch, which are searched too.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lactchain import plugins
from lactchain.baselines.evaluation import evaluate_agent
from lactchain.baselines.member_envs import MemberEnvs, spaces_of
from lactchain.baselines.population import Population
from lactchain.baselines.state_files import over_leaves
from lactchain.baselines.training import AGENTS, save_agent
from lactchain.errors import Interrupted
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.console import under_way
from lactchain.runs.process import stop_requested
from lactchain.search.evolution import Individual, Species
from lactchain.search.mutations import Child

CERTIFYING_EPISODES = 50


class AgentSpecies(Species):
    """Classic agents of one kind that evolve from a config; `envs` are what each place plays."""

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
        return learnt_by(self.kind(config, *self.spaces, seed=[self.seed, place]))

    def train(self, members: Sequence[Individual], generation: int) -> list[dict[str, Any]]:
        """Trains each for a generation's steps at least; `Interrupted` when asked to stop."""
        before = sum(envs.num_env_steps for envs in self.envs)
        states = [self._train(member, place, generation) for place, member in enumerate(members)]
        self.num_env_steps += sum(envs.num_env_steps for envs in self.envs) - before
        return states

    def _train(self, member: Individual, place: int, generation: int) -> dict[str, Any]:
        """What a member has learnt after a generation, in the environments of its place."""
        num_steps = self.settings.steps_per_generation
        progress = generation / self.settings.num_generations
        agent = revived(self.kind, member, self.spaces, [self.seed, generation, place])
        envs = self.envs[place]
        start = envs.num_env_steps
        with under_way("steps", num_steps) as step:
            while (steps := envs.num_env_steps - start) < num_steps:
                if stop_requested():
                    raise Interrupted(stop_requested(), "stopped while members trained")
                step.at(steps)
                agent.advance(envs, progress)
        envs.pop_episodes()
        return learnt_by(agent)

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
        """A mutant of the kind "hyper", or of those that the add-on `network_mutations` has."""
        of_networks = plugins.add_on("network_mutations") or {}
        if kind in of_networks:
            return of_networks[kind](parent, self.settings.mutation, rng)
        return super().mutate(kind, parent, rng)

    def save(self, champion: Individual, folder: Path) -> dict[str, Any]:
        """Writes the agent that the search would return now."""
        save_agent(folder, revived(self.kind, champion, self.spaces, 0), 0, self.world)
        config = champion.config
        return {"best/hidden": list(config.hidden), "best/activation": config.activation}

    def _judge(
        self, members: Sequence[Individual], num_episodes: int, seed: int
    ) -> tuple[list[float], int]:
        """Mean returns, NaN for members whose gradients were not finite; and steps played."""
        returns, num_steps = [], 0
        for member in members:
            agent = revived(self.kind, member, self.spaces, 0)
            played = evaluate_agent(agent, self.world, num_episodes, seed)
            returns.append(np.nan if agent.diverged.any() else float(played.returns.mean()))
            num_steps += int(played.lengths.sum())
        return returns, num_steps


def learnt_by(agent: Population) -> dict[str, Any]:
    """A copy of what the one member of a population has learnt; see above."""
    parts = over_leaves(copy.copy, agent.state_dict()["parts"])
    shapes = {name: part.shapes for name, part in agent.parts.items() if hasattr(part, "shapes")}
    return {"parts": parts, "shapes": shapes, "num_updates": agent.num_updates}


def revived(
    kind: type[Population], member: Any, spaces: Any, seed: int | Sequence[int]
) -> Population:
    """A population of one member that goes on with its `config` from its `state`.

    The spaces are those of `spaces_of`.
    """
    agent = kind(member.config, *spaces, seed)
    agent.num_updates = member.state["num_updates"]
    for name, part in agent.parts.items():
        part.load_state_dict(member.state["parts"][name])
    return agent
