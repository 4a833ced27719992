"""Evolution: a population trains, is evaluated, and the fitter ones have mutated children.

Source: Franke et al. 2021 (SEARL), and AgileRL, with these departures: the fittest member so far,
the champion, is kept as it was evaluated, is evaluated again beside each generation, and is what a
search returns; the first place of a generation is an unmutated elite, the champion or (as in SEARL)
the fittest of the generation before; what members have learnt passes to their children whole,
optimisers included; and every step of training and of selecting evaluations is counted.

What evolves is a `Species`: classic agents (`lactchain.search.agents`) or language trainers
(the add-on `language_species`). All chance comes from the seed and the number of the
generation, so that a search can be replayed, and one that was killed does the generation again that
was cut:

    RUN/lineage.jsonl   a line for each member of each generation
    RUN/best/           the member that the search returns, as it was when it was evaluated
    RUN/checkpoints/    everything that the next generation depends on
    RUN/stop            a file of this name, made by anybody, ends the search in good order
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from lactchain.baselines.state_files import Stored, resume, save_checkpoint
from lactchain.config.bounds import tunable_values, with_tunables
from lactchain.config.parsing import with_values
from lactchain.runs.console import GrowingTable, under_way
from lactchain.runs.run import Run
from lactchain.search import mutations
from lactchain.search.mutations import Change, Child
from lactchain.search.settings import MUTATIONS, EvolutionConfig
from lactchain.storage.files import append_json_lines, write_json_lines

ELITE, NEWCOMER = "elite", "newcomer"


@dataclass(frozen=True)
class Individual:
    """A member in one generation."""

    id: int  # number of the generation times the population's size plus the place
    parent: int | None  # id of the member that it comes from; None for newcomers
    mutation: str  # newcomer, elite (the fittest so far, unchanged), or a kind of mutation
    change: Change
    config: Any
    state: Any  # what it has learnt, as its species holds it
    fitness: float | None = None  # mean return after it trained; the champion's, of all evaluations
    parent_fitness: float | None = None  # of its parent, when it was chosen
    num_evaluations: int = 0

    def judged(self, fitness: float) -> Self:
        """The same after one more evaluation."""
        count = self.num_evaluations
        mean = fitness if count == 0 else (count * self.fitness + fitness) / (count + 1)
        return replace(self, fitness=mean, num_evaluations=count + 1)

    @property
    def rank(self) -> float:
        """Fitness, the worst where it is no number: members that diverged have no children."""
        return self.fitness if np.isfinite(self.fitness) else -np.inf


class Species(Stored, ABC):
    """What evolves: how members come to be, learn, are judged and change.

    What is stored is what the next generation depends on beside the members. A state, of what a
    member has learnt, is of arrays and what JSON can hold. It is made from a `SearchConfig`;
    `ConfigError` where there is no such tunable, or its given value is out of its range.

    Attributes:
        given: what members' configs come from, by tunables, architecture and activation.
        num_env_steps: steps of training and of selecting evaluations.
    """

    def __init__(self, config: Any) -> None:
        self.given, self.space, self.settings = config.subject, config.space, config.evolution
        self.num_env_steps = 0
        present = tunable_values(self.given)
        searched = mutations.searched_tunables(self.given, self.space.tunables)
        with_tunables(self.given, {name: present[name] for name in searched})  # refuses some

    @abstractmethod
    def untrained(self, config: Any, place: int) -> Any:
        """The state of a newcomer with this config."""

    @abstractmethod
    def train(self, members: Sequence[Individual], generation: int) -> list[Any]:
        """The members' new states, after a generation's training."""

    @abstractmethod
    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """Mean returns of members and champion over the same episodes, which are counted."""

    @abstractmethod
    def certify(self, member: Individual) -> float:
        """Mean return over many fresh episodes, which are not counted."""

    @abstractmethod
    def save(self, champion: Individual, folder: Path) -> dict[str, Any]:
        """Writes what a search would return now, unless it is kept elsewhere.

        Returns what a summary says of it beside its tunables.
        """

    def newcomer(self, place: int, rng: np.random.Generator) -> Child:
        """A member without a parent; see `EvolutionConfig.start` for its config."""
        config, change, settings = self.given, {}, self.settings
        if settings.start == "drawn":
            config = mutations.draw_config(config, self.space, rng)
        elif place:
            config, change = mutations.mutate_tunables(config, self.space, settings.mutation, rng)
        return Child(config, self.untrained(config, place), change)

    def mutate(self, kind: str, parent: Individual, rng: np.random.Generator) -> Child | None:
        """A mutant; None where there is nothing to change. Here the kind "hyper" alone."""
        if kind != "hyper":
            return None
        settings = self.settings.mutation
        config, change = mutations.mutate_tunables(parent.config, self.space, settings, rng)
        return Child(config, parent.state, change)

    def keep(self, members: Sequence[Individual]) -> None:
        """Told before each generation of all whose states are wanted yet; others may go."""

    def close(self) -> None:
        """Told when no member will play any more."""


@dataclass
class Evolution(Stored):
    """A population of one species under selection."""

    stored = "number", "certified", "lineage", "species"

    species: Species
    config: EvolutionConfig
    seed: int = 0
    target: float | None = None  # mean return at which it is done; None: after all generations
    number: int = 0  # the next generation
    members: list[Individual] = field(default_factory=list)  # of it, not trained yet
    champion: Individual | None = None  # the fittest so far, as it was when it was first evaluated
    certified: float | None = None  # its mean return over fresh episodes, where the target was met
    # A record for each member so far: who came from whom, by what, with what gain.
    lineage: list[dict[str, Any]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self.species.num_env_steps

    def __iter__(self) -> Iterator[list[Individual]]:
        """Members as they were judged, until the target is certified or the last one is done."""
        while self.certified is None and self.number < self.config.num_generations:
            yield self.advance()

    def advance(self) -> list[Individual]:
        """Trains, judges and replaces the members; returns them as they were judged."""
        if not self.members:
            self.members = self._newcomers(self._rng())
        self.species.keep([*self.members, self.champion] if self.champion else self.members)
        states = self.species.train(self.members, self.number)
        trained = [replace(m, state=s) for m, s in zip(self.members, states, strict=True)]
        again = [self.champion] if self.champion and self.config.judge_champion else []
        judged = [*trained, *again]
        fitness = self.species.evaluate(judged, self.number)
        judged = [member.judged(f) for member, f in zip(judged, fitness, strict=True)]
        evaluated = judged[: len(trained)]
        # Otherwise one lucky evaluation would make a champion for ever.
        self.champion = judged[-1] if again else self.champion
        best = _fittest(evaluated)
        if self.champion is None or best.rank >= self.champion.rank:
            self.champion = best  # of equal ones the newest, which has learnt longest
        self._certify(judged)
        self.lineage += map(self._record, evaluated)
        self.number += 1
        self.members = self._children(evaluated)
        return evaluated

    def _record(self, member: Individual) -> dict[str, Any]:
        names = "id", "parent", "mutation", "change", "fitness", "parent_fitness"
        parent, fitness = member.parent_fitness, member.fitness
        return {
            "generation": self.number,
            **{name: getattr(member, name) for name in names},
            "gain": None if member.parent is None else fitness - parent,
            "num_env_steps": self.steps,
        }

    def _newcomers(self, rng: np.random.Generator) -> list[Individual]:
        """A whole population with fresh weights."""
        size, members = self.config.population_size, []
        for id in range(self.number * size, (self.number + 1) * size):
            config, state, change = self.species.newcomer(id, rng)
            members.append(Individual(id, None, NEWCOMER, change, config, state))
        return members

    def _certify(self, judged: Sequence[Individual]) -> None:
        """Lets those that seem to meet the target prove it, the fittest first."""
        if self.target is None:
            return
        for member in sorted(judged, key=lambda member: member.rank, reverse=True):
            if member.rank < self.target:
                return
            outcome = self.species.certify(member)
            if outcome >= self.target:
                self.champion, self.certified = member, outcome
                return

    def _children(self, evaluated: Sequence[Individual]) -> list[Individual]:
        """The next generation: the elite unchanged, and mutants of winners of tournaments.

        Or newcomers only, since beside an elite that has learnt for long none would get through.
        """
        rng, first = self._rng(), self.number * self.config.population_size
        if self._stands_still():
            return self._newcomers(rng)
        pool, elite = [*evaluated], _fittest(evaluated)
        if self.config.elite == "champion":
            elite = self.champion
            pool.append(elite)  # a rival as it was when it was evaluated
        children = [self._child(first, elite, ELITE, rng)]
        fewest = min(len(evaluated), self.config.fewest_members)
        weights = [self.config.mutation.weights.get(kind, 0.0) for kind in MUTATIONS]
        for place in range(1, max(round(len(evaluated) * self.config.survivors), fewest)):
            count = min(self.config.tournament_size, len(pool))
            rivals = rng.choice(len(pool), count, replace=False)
            parent = _fittest([pool[rival] for rival in rivals])
            kind = str(rng.choice([*MUTATIONS], p=np.array(weights) / sum(weights)))
            children.append(self._child(first + place, parent, kind, rng))
        return children

    def _child(
        self, id: int, parent: Individual, kind: str, rng: np.random.Generator
    ) -> Individual:
        mutant = None if kind in (ELITE, "none") else self.species.mutate(kind, parent, rng)
        if mutant is None and kind != ELITE:
            kind = "none"
        config, state, change = mutant or (parent.config, parent.state, {})
        return Individual(id, parent.id, kind, change, config, state, parent_fitness=parent.fitness)

    def _stands_still(self) -> bool:
        """Whether the last `patience` generations brought no new champion, nor a new population."""
        patience = self.config.patience
        since = self.number - 1 - self.champion.id // self.config.population_size
        return 0 < patience <= since and since % patience == 0

    def _rng(self) -> np.random.Generator:
        """Chance of the coming generation, whatever happened before."""
        return np.random.default_rng([self.seed, self.number])

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next generations depend on, as arrays and plain values."""
        champion = self.champion and self._encode(self.champion)
        members = [self._encode(member) for member in self.members]
        return super().state_dict() | {"members": members, "champion": champion}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        super().load_state_dict(state)
        self.members = [self._decode(member) for member in state["members"]]
        self.champion = state["champion"] and self._decode(state["champion"])

    def _encode(self, member: Individual) -> dict[str, Any]:
        """What may differ between members' configs is tunables, and the shape of networks."""
        config, shape = member.config, ("hidden", "activation")
        values = {name: getattr(config, name) for name in shape if hasattr(config, name)}
        return {**vars(member), "config": values | tunable_values(config)}

    def _decode(self, written: Mapping[str, Any]) -> Individual:
        values = dict(written["config"])
        if "hidden" in values:
            values["hidden"] = tuple(values["hidden"])
        return Individual(**written | {"config": with_values(self.species.given, values)})


def evolve(config: Any, run: Run, species: Species) -> dict[str, Any]:
    """Generations until the target of a `SearchConfig` is met, or all are done; the summary."""
    evolution = Evolution(species, config.evolution, config.run.seed, config.target)
    resume(run, evolution)
    write_json_lines(run.path("lineage.jsonl"), evolution.lineage)  # as it was then
    table, count = GrowingTable(), config.evolution.num_generations
    with closing(species), under_way("generation", count, most=True) as step:
        step.resumed(evolution.number)
        for members in evolution:
            table.add(record_generation(run, evolution, members))
            species.save(evolution.champion, run.path("best"))
            # Last: what is done again writes the rest again.
            save_checkpoint(run, evolution.number, evolution.state_dict())
            step.at(evolution.number)
            if run.told_to_end:
                break
    champion = evolution.champion
    return {
        "seed": config.run.seed,
        "num_generations": evolution.number,
        "num_env_steps": evolution.steps,
        "target_met": None if config.target is None else evolution.certified is not None,
        "best/id": champion.id,
        "best/fitness": champion.fitness,
        "best/episode_return": species.certify(champion),
        "best/tunables": tunable_values(champion.config),
    } | species.save(champion, run.path("best"))


def record_generation(
    run: Run, evolution: Evolution, members: Sequence[Individual]
) -> dict[str, Any]:
    """Adds a generation to the lineage and to the metrics; returns what people see of it."""
    lines = evolution.lineage[-len(members) :]
    append_json_lines(run.path("lineage.jsonl"), lines, synced=True)
    known = [member.fitness for member in members if np.isfinite(member.fitness)]
    number, steps = evolution.number - 1, evolution.steps
    mean, best = sum(known) / max(len(known), 1), evolution.champion.fitness
    figures = {"search/best_fitness": best, "search/fitness": mean, "search/generation": number}
    run.log(figures, step=steps)
    return {"generation": number, "fitness": mean, "best": best, "steps": f"{steps:,}"}


def _fittest(members: Sequence[Individual]) -> Individual:
    return max(members, key=lambda member: member.rank)
