"""Evolution: a population trains, is evaluated, and the fitter ones have mutated children.

Source: Franke et al. 2021 (SEARL), and AgileRL, with these departures: the fittest member so far,
the champion, is kept as it was evaluated, is evaluated again beside each generation, and is what a
search returns; the first place of a generation is an unmutated elite, the champion or (as in SEARL)
the fittest of the generation before; what members have learnt passes to their children whole,
optimisers included; and every step of training and of selecting evaluations is counted.

What evolves is a `Species`: classic agents (`lactchain.search.agents`) or language trainers
(the add-on `language_species`). All chance comes from the seed and the number of the
generation, so that a search can be replayed, and one that was killed goes on from its last whole
generation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from lactchain.search.settings import MUTATIONS, EvolutionConfig

ELITE, NEWCOMER = "elite", "newcomer"


@dataclass(frozen=True)
class Individual:
    """A member in one generation.

    Attributes:
        id: number of the generation times the population's size plus the place.
        parent: id of the member that it comes from; None for newcomers.
        mutation: newcomer, elite (the fittest so far, unchanged), or a kind of mutation.
        state: what it has learnt, as its species holds it.
        fitness: mean return of the evaluation after it trained; the champion's, of all its
            evaluations.
        parent_fitness: the same of its parent, when it was chosen.
        num_evaluations: how many there were.
    """

    id: int
    parent: int | None
    mutation: str
    change: Change
    config: Any
    state: Any
    fitness: float | None = None
    parent_fitness: float | None = None
    num_evaluations: int = 0

    @property
    def gain(self) -> float | None:
        """How much fitter it is than its parent was; None for newcomers."""
        return None if self.parent is None else self.fitness - self.parent_fitness

    def judged(self, fitness: float) -> Individual:
        """The same after one more evaluation."""
        count = self.num_evaluations
        mean = fitness if count == 0 else (count * self.fitness + fitness) / (count + 1)
        return replace(self, fitness=mean, num_evaluations=count + 1)


Change = Mapping[str, Any]
"""What changed: name → [before, after]."""


class Child(NamedTuple):
    """A new member before it has trained."""

    config: Any
    state: Any
    change: Change


class Species(Protocol):
    """What evolves: how members come to be, learn, are judged and change.

    `num_env_steps` counts steps of training and of selecting evaluations.
    """

    num_env_steps: int

    def newcomer(self, place: int, rng: np.random.Generator) -> Child:
        """A member of the first generation."""

    def keep(self, members: Sequence[Individual]) -> None:
        """Told before each generation of all whose states are wanted yet; others may go."""

    def train(self, members: Sequence[Individual], generation: int) -> list[Any]:
        """Lets all members learn; their new states."""

    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """Mean returns of members and champion over the same episodes, which are counted."""

    def certify(self, member: Individual) -> float:
        """Mean return of one member over many fresh episodes, which are not counted."""

    def mutate(self, kind: str, parent: Individual, rng: np.random.Generator) -> Child | None:
        """A mutant; None where there is nothing to change."""

    def encode(self, config: Any, state: Any) -> dict[str, Any]:
        """A member as arrays and plain values."""

    def decode(self, body: Mapping[str, Any]) -> tuple[Any, Any]:
        """The config and the state that `encode` was given."""

    def save(self, champion: Individual, folder: Path) -> None:
        """Writes what a search would return now into a folder, unless it is kept elsewhere."""

    def facts(self, champion: Individual) -> dict[str, Any]:
        """What a summary says of the champion beside its tunables."""

    def close(self) -> None:
        """Lets go of environments."""

    def state_dict(self) -> dict[str, Any]:
        """What the next generation depends on beside the members: environments, counts."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was called."""


@dataclass(frozen=True)
class Generation:
    """What a generation came to: its evaluated members, and steps and champion so far."""

    number: int
    members: tuple[Individual, ...]
    num_env_steps: int
    champion: Individual
    certified: float | None = None

    def lineage(self) -> list[dict[str, Any]]:
        """One record for each member: who came from whom, by what, with what gain."""
        told = "id", "parent", "mutation", "change", "fitness", "parent_fitness", "gain"
        own = [{name: getattr(member, name) for name in told} for member in self.members]
        steps = {"num_env_steps": self.num_env_steps}
        return [{"generation": self.number} | record | steps for record in own]


@dataclass
class Evolution:
    """A population of one species under selection.

    Attributes:
        target: mean return at which a search is done; None: it goes through all generations.
        number: the next generation.
        members: its members, not trained yet.
        champion: the fittest so far, as it was when it was first evaluated.
        certified: mean return of the champion over fresh episodes, where the target was met.
        lineage: the records of all generations so far; see `Generation.lineage`.
    """

    species: Species
    config: EvolutionConfig
    seed: int = 0
    target: float | None = None
    number: int = 0
    members: list[Individual] = field(default_factory=list)
    champion: Individual | None = None
    certified: float | None = None
    lineage: list[dict[str, Any]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Generation]:
        """Generations, until the target is certified or the last one is done."""
        while self.certified is None and self.number < self.config.num_generations:
            yield self.advance()

    def advance(self) -> Generation:
        """Trains, judges and replaces the members."""
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
        best = max(evaluated, key=_rank)  # of equal ones the newest, which has learnt longest
        if self.champion is None or _rank(best) >= _rank(self.champion):
            self.champion = best
        self._certify(judged)
        steps = self.species.num_env_steps
        generation = Generation(self.number, tuple(evaluated), steps, self.champion, self.certified)
        self.lineage += generation.lineage()
        self.number += 1
        self.members = self._children(evaluated)
        return generation

    def _newcomers(self, rng: np.random.Generator) -> list[Individual]:
        """A whole population with fresh weights."""
        size = self.config.population_size
        ids = range(self.number * size, (self.number + 1) * size)
        drawn = [(id, *self.species.newcomer(id, rng)) for id in ids]
        return [
            Individual(id, None, NEWCOMER, change, config, state)
            for id, config, state, change in drawn
        ]

    def _certify(self, judged: Sequence[Individual]) -> None:
        """Lets those that seem to meet the target prove it, the fittest first."""
        if self.target is None:
            return
        for member in sorted(judged, key=_rank, reverse=True):
            if _rank(member) < self.target:
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
        pool, elite = [*evaluated], max(evaluated, key=_rank)
        if self.config.elite == "champion":
            elite = self.champion
            pool.append(elite)  # a rival as it was when it was evaluated
        children = [self._child(first, elite, ELITE, rng)]
        fewest = min(len(evaluated), self.config.fewest_members)
        for place in range(1, max(round(len(evaluated) * self.config.survivors), fewest)):
            count = min(self.config.tournament_size, len(pool))
            rivals = rng.choice(len(pool), count, replace=False)
            parent = max((pool[rival] for rival in rivals), key=_rank)
            children.append(self._child(first + place, parent, self._kind(rng), rng))
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

    def _kind(self, rng: np.random.Generator) -> str:
        weights = [self.config.mutation.weights.get(kind, 0.0) for kind in MUTATIONS]
        return str(rng.choice([*MUTATIONS], p=np.array(weights) / sum(weights)))

    def _rng(self) -> np.random.Generator:
        """Chance of the coming generation, whatever happened before."""
        return np.random.default_rng([self.seed, self.number])

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next generations depend on, as arrays and plain values."""
        return {
            "number": self.number,
            "members": [self._encode(member) for member in self.members],
            "champion": self.champion and self._encode(self.champion),
            "certified": self.certified,
            "lineage": self.lineage,
            "species": self.species.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        self.number, self.certified = state["number"], state["certified"]
        self.lineage = state["lineage"]
        self.members = [self._decode(member) for member in state["members"]]
        self.champion = state["champion"] and self._decode(state["champion"])
        self.species.load_state_dict(state["species"])

    def _encode(self, member: Individual) -> dict[str, Any]:
        record = {**vars(member), "body": self.species.encode(member.config, member.state)}
        del record["config"], record["state"]
        return record

    def _decode(self, written: Mapping[str, Any]) -> Individual:
        config, state = self.species.decode(written["body"])
        record = {name: value for name, value in written.items() if name != "body"}
        return Individual(config=config, state=state, **record)


def ancestors(member: Individual, lineage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The member and those that it comes from, the newcomer last, by the records of a lineage."""
    by_id = {line["id"]: line for line in lineage}
    chain, id = [], member.id
    while id is not None:
        chain.append({key: by_id[id][key] for key in ("id", "mutation", "change", "fitness")})
        id = by_id[id]["parent"]
    return chain


def credit(lineage: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What each kind of mutation has brought, from the records of a lineage.

    Per kind: how often it happened, the mean gain over the parents, and the share of children that
    were fitter than their parents. Training brings gains too, so the kind none is what the others
    are to be compared with.
    """
    gains = defaultdict(list)
    for record in lineage:
        if record["gain"] is not None and np.isfinite(record["gain"]):
            gains[record["mutation"]].append(record["gain"])
    return {
        kind: {
            "count": len(values),
            "mean_gain": float(np.mean(values)),
            "improved": float(np.mean(np.array(values) > 0)),
        }
        for kind, values in sorted(gains.items())
    }


def _rank(member: Individual) -> float:
    """Fitness, the worst where it is not a number: members that diverged have no children."""
    return member.fitness if np.isfinite(member.fitness) else -np.inf
