"""A language actor as a problem of the race: SimPO on a small GridWorld, a step is a completion.

The actor is cloned from scripted chains once, in the folder of the race, and every trial and every
newcomer begins with it. A round is pairs of its own completions, ranked by return, and SimPO on
them; its judgement is greedy episodes from every start state.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np

from lactchain.config.settings import (
    ActorConfig,
    EnvironmentConfig,
    LoraSettings,
    PreferenceConfig,
    RunConfig,
    TrainingConfig,
)
from lactchain.config.weights import TinyModelConfig
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.search.evolution import Individual
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from lactchain.stages import train_bc
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.search import STAGES, LanguageConfig
from lactchain.stages.train_bc import BehaviorConfig, TrainBCConfig
from lactchain.stages.train_simpo import TrainSimPOConfig
from lactchain_extras.language_search.actors import LanguageSpecies, Weights
from search_race.trials import Nursery, Problem

MOST_ROUNDS = 100
"""Of a trial, at most; ids of rounds are unique below."""


@dataclass(frozen=True)
class Room:
    """A folder in the place of a run's."""

    directory: Path

    def path(self, name: str) -> Path:
        """What lies in it."""
        return self.directory / name


@dataclass(frozen=True)
class LanguageProblem(Problem):
    """A search over SimPO's settings.

    Attributes:
        shape: of the actor.
        cloning: how it comes to know the form of a completion, in the world of the subject.
        evaluation: how it is judged.
    """

    shape: TinyModelConfig = TinyModelConfig()
    cloning: TrainBCConfig = TrainBCConfig()
    evaluation: EvaluationConfig = EvaluationConfig(num_samples=0)

    def nursery(self, seed: int, folder: Path) -> Nursery:
        """Of one actor at a time."""
        return LanguageNursery(self, seed, folder)

    def species(self, seed: int, folder: Path, place: Path | None = None) -> LanguageSpecies:
        """Actors that begin with the clone; their weights are in a place, or in the folder."""
        clone = self._clone(folder)
        run = RunConfig(seed=MOST_ROUNDS * seed, threads=1)
        train = replace(self.subject, run=run, actor=replace(self.subject.actor, model=clone))
        config = LanguageConfig(train, self.evaluation, "success_rate")
        room = Room(place or folder / f"members-{seed}")
        return LanguageSpecies(config, self.space, self.evolution, room, STAGES)

    def _clone(self, folder: Path) -> str:
        """The actor that everybody begins with, made where it is not there yet."""
        base, cloned = folder / "base", folder / "clone"
        prepare_tiny_actor(base, self.shape, self.subject.environment)
        run = RunConfig(run_dir=str(cloned), threads=1)
        actor = replace(self.subject.actor, model=str(base), lora=None)
        world = self.subject.environment
        train_bc.main(replace(self.cloning, run=run, environment=world, actor=actor))
        return str(cloned / "actor")


@dataclass
class Apprentice:
    """An actor on its way; its id grows by 1 with each round.

    Attributes:
        species: its own, since trials of one number may differ in their settings.
    """

    individual: Individual
    species: LanguageSpecies


class LanguageNursery(Nursery):
    """Rounds of one actor after the other."""

    def __init__(self, problem: LanguageProblem, seed: int, folder: Path) -> None:
        self.problem, self.seed, self.folder = problem, seed, folder

    def begin(self, config: Any, number: int) -> Apprentice:
        """With the weights of the clone."""
        folder = Path(mkdtemp(dir=self.folder, prefix="trial-"))
        species = self.problem.species(self.seed, self.folder, folder)
        model = species.config.train.actor.model
        config = replace(config, actor=replace(config.actor, model=model))
        place = MOST_ROUNDS * number
        newcomer = Individual(place, None, "newcomer", {}, config, Weights(model))
        apprentice = Apprentice(newcomer, species)
        finalize(apprentice, rmtree, folder, ignore_errors=True)  # its weights go with it
        return apprentice

    def train(self, agents: list[Apprentice], num_steps: int) -> list[int]:
        """A round of an actor."""
        [agent] = agents
        species, own = agent.species, agent.individual
        before, own = species.num_env_steps, replace(own, id=own.id + 1)
        [state] = species.train([own], 0)
        agent.individual = replace(own, state=state)
        return [species.num_env_steps - before]

    def judge(self, agents: list[Apprentice]) -> list[tuple[float, int]]:
        """Greedy episodes from every start."""
        [agent] = agents
        before = agent.species.num_env_steps
        [fitness] = agent.species.evaluate([agent.individual], 0)
        return [(float(np.nan_to_num(fitness)), agent.species.num_env_steps - before)]

    def certify(self, agent: Apprentice) -> float:
        """The same from another seed; greedy play throws no dice."""
        return agent.species.certify(agent.individual)


LANGUAGE = LanguageProblem(
    name="language",
    title="GridWorld 3 × 3, a tiny actor by SimPO",
    subject=TrainSimPOConfig(
        environment=EnvironmentConfig(
            kwargs={"size": 3}, template="{x} {y} {orientation} {goal_x} {goal_y}",
            max_chain_length=7, max_chains=3, invalid_penalty=-1.0, chain_cost=0.02,
        ),
        actor=ActorConfig(dtype="float32", max_new_tokens=12, lora=LoraSettings()),
        preferences=PreferenceConfig(
            num_states=576, num_candidates=8, min_margin=0.01, states_per_shard=576
        ),
        training=TrainingConfig(batch_size=16, num_epochs=3),
    ),
    space=SpaceConfig(
        [
            "training.learning_rate", "loss.beta", "loss.target_margin", "loss.nll_weight",
            "actor.lora.r",
        ]
    ),
    evolution=EvolutionConfig(
        population_size=6, tournament_size=3, num_generations=1000, survivors=0.5,
        fewest_members=2, patience=4,
        elite="champion",  # a round too many spoils an actor
        mutation=MutationConfig({"none": 0.2, "hyper": 0.8}, tunable_step=0.2, num_tunables=5),
    ),
    target=0.6, budget=230_400, moment=1_000, trial_steps=23_040, report_steps=4_608,
    num_seeds=10,
    shape=TinyModelConfig(
        hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=192,
        vocab_size=400, initializer_range=0.1,
    ),
    cloning=TrainBCConfig(
        behavior=BehaviorConfig(num_chains=12_000, competent_fraction=0.2, max_random_length=3),
        training=TrainingConfig(learning_rate=3e-3, batch_size=64, num_epochs=2),
    ),
    evaluation=EvaluationConfig(num_envs=512, num_samples=0),
)  # fmt: skip
