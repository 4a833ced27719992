"""The configs of searches: plain values, no torch."""

from dataclasses import dataclass, field
from typing import Literal

from lactchain.config.bounds import (
    AtLeast0,
    AtLeast1,
    Bounded,
    Count,
    Positive,
    PositiveShare,
    Share,
)
from lactchain.config.settings import check

MUTATIONS = {"none": 0.2, "architecture": 0.1, "parameters": 0.2, "activation": 0.05, "hyper": 0.45}
"""Kinds of mutation, and how often each is drawn by default."""


@dataclass(frozen=True)
class MutationConfig(Bounded):
    """What may happen to a child, and how strongly. Weights need not add up to 1."""

    weights: dict[str, float] = field(default_factory=MUTATIONS.copy)
    """How often each kind is drawn. none; architecture: units or a layer more (the function stays)
    or fewer; parameters: Gaussian noise on the weights; activation: another; hyper: tunables.
    The species says which kinds it knows: what it does not know counts as none."""
    tunable_step: Positive = 0.15
    """Deviation of a tunable's step, as a share of its range (on its own scale)."""
    num_tunables: AtLeast1 = 1
    """Tunables that one mutation of kind hyper moves, or all where there are fewer."""
    noise: Positive = 0.1
    """Deviation of the noise on weights, in units of their root mean square, array by array."""
    growth_share: Share = 0.75
    """Probability that an architecture grows rather than shrinks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.weights
        known = weights.keys() <= MUTATIONS.keys()
        sound = known and all(w >= 0 for w in weights.values()) and sum(weights.values()) > 0
        check(sound, "weights", f"weights of at least 0 for some of {(*MUTATIONS,)}", weights)


@dataclass(frozen=True)
class SpaceConfig:
    """Where newcomers are drawn from: the ranges of tunables, and shapes of networks."""

    tunables: list[str] = field(default_factory=list)
    """Tunables that are searched, by dotted name; none: all that the config class declares."""
    architectures: list[list[int]] = field(default_factory=list)
    """Hidden layers that a newcomer's networks may have; none: those of the given config."""
    activations: list[Literal["tanh", "relu", "elu"]] = field(default_factory=list)
    """Activations that a newcomer's networks may have; none: that of the given config."""


@dataclass(frozen=True)
class EvolutionConfig(Bounded):
    """Generations of a population: train, evaluate, choose parents, mutate."""

    population_size: int = 8
    """Members."""
    tournament_size: int = 2
    """Members drawn for each place; the fittest of them is the parent."""
    num_generations: AtLeast1 = 50
    """Generations at most."""
    steps_per_generation: AtLeast1 = 2048
    """Environment steps that each member trains in a generation, at least."""
    num_episodes: Count = 5
    """Greedy episodes by which each member is judged."""
    start: Literal["drawn", "given"] = "drawn"
    """drawn: the tunables of the first members are drawn from their ranges; given: the first member
    has the given config, and the others are mutants of it."""
    elite: Literal["champion", "generation"] = "champion"
    """Who goes on unmutated in the first place. champion: the fittest so far, as it was when it was
    evaluated, which is a rival in tournaments too; nothing that was found is lost, but what it has
    learnt since. generation: the fittest of each generation, as it is (Franke et al. 2021)."""
    survivors: PositiveShare = 1.0
    """Size of a generation over that of the one before, until `fewest_members` are left. Below 1
    many are tried and few trained for long (successive halving, Jamieson & Talwalkar 2016)."""
    fewest_members: AtLeast1 = 2
    """Members that are left in the end; 1: the elite alone."""
    patience: AtLeast0 = 0
    """Generations without a new champion after which a new population begins, of newcomers, as many
    as there were at first; 0: never."""
    judge_champion: bool = True
    """Judge the champion again beside each generation, which costs steps; false: one lucky
    evaluation can make a champion for ever, which matters where the champion is returned."""
    mutation: MutationConfig = MutationConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        size, rivals = self.population_size, self.tournament_size
        check(size >= 2, "population_size", "at least 2, or there is no choice", size)
        fits, wanted = 1 <= rivals <= size, f"at least 1 and at most population_size = {size}"
        check(fits, "tournament_size", wanted, rivals)
        fewest, wanted = self.fewest_members, f"at most population_size = {size}"
        check(fewest <= size, "fewest_members", wanted, fewest)
