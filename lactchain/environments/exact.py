"""Exact figures of small worlds: best values, shortest paths, and what chains are worth.

A `TabularModel` is a Markov decision process in arrays, taken from the very tables that the
environment plays. Everything here ignores time limits: it answers what a state is worth, not what
is left of an episode, which is also what a critic that bootstraps at truncation estimates. What the
best chains are worth where actions have several outcomes: see `chance.py`.

Arrays over states that are returned have one row for each of the N non-terminal states, in the
order of `TabularModel.non_terminal_states`, which is the order of a text view's `states`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np

from lactchain.environments.faults import plain
from lactchain.errors import ConfigError
from lactchain.functional.ties import is_greatest
from lactchain.types import Discount

DiscountPer = Literal["action", "chain"]
FAR_SIGHTED = 0.99
"""Discount of an action, where no critic brings its own."""

MAX_CHAINS = 5_000
"""So many chains at most are gone through one by one."""

ENDLESS = 1e9
"""A policy whose values are so many times what a chain earns goes on for ever, but for rounding."""


@dataclass(frozen=True, eq=False)
class TabularModel:
    """S states, A actions, and K possible outcomes of an action (K = 1: deterministic).

    Models are equal that hold the same numbers.

    Attributes:
        next_state: (S, A, K) state numbers. Terminal states lead to themselves, with reward 0.
        probability: (S, A, K), sums to 1 over outcomes.
        reward: (S, A, K).
        terminal: (S,), the episode is over.
        goal: (S,), it is over and has ended well.
        states: the S states as text views name them; JSON can hold them.
    """

    next_state: np.ndarray
    probability: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    goal: np.ndarray
    states: tuple[Mapping[str, int], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TabularModel) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> tuple[Any, ...]:
        arrays = (self.next_state, self.probability, self.reward, self.terminal, self.goal)
        return str(self.states), *((a.shape, a.dtype.str, a.tobytes()) for a in arrays)

    @cached_property
    def non_terminal(self) -> np.ndarray:
        """Numbers (N,) of the states that are not terminal, ascending."""
        return np.flatnonzero(~self.terminal)

    @cached_property
    def row_of_state(self) -> np.ndarray:
        """Row (S,) of each state in arrays over N states; −1 for terminal ones."""
        return np.where(self.terminal, -1, np.cumsum(~self.terminal) - 1)

    @property
    def deterministic(self) -> bool:
        """Whether every action has a single outcome."""
        return self.next_state.shape[2] == 1

    @property
    def non_terminal_states(self) -> list[dict[str, int]]:
        """The N states that are not terminal, as text views name them."""
        return [plain(dict(self.states[number])) for number in self.non_terminal]

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {self._key(state): row for row, state in enumerate(self.non_terminal_states)}

    def _key(self, state: Mapping[str, Any]) -> str:
        return json.dumps(plain([state[name] for name in self.states[0]]), sort_keys=True)

    def row(self, state: Mapping[str, int]) -> int:
        """The row of a state in arrays over N states; `ValueError` if none, or terminal."""
        try:
            return self._rows[self._key(state)]
        except (KeyError, TypeError) as error:
            raise ValueError(f"state: expected a non-terminal state, got {state}") from error


def check_model(
    model: Any,
    states: Sequence[Mapping[str, Any]] | None,
    starts: Sequence[Mapping[str, Any]] | None = None,
) -> str | None:
    """What is wrong with a model that a world hands over, in words; None where it can be used.

    Args:
        states: all in which no episode is over, where they are listed: figures go by their order.
        starts: those of them that episodes begin in.
    """
    if not isinstance(model, TabularModel):
        return f"a TabularModel, got {model!r:.60}"
    num_states, shape = len(model.terminal), model.next_state.shape
    alike = model.probability.shape == model.reward.shape == shape and len(shape) == 3
    if not alike or {len(model.goal), len(model.states), shape[0]} != {num_states}:
        return "arrays (S, A, K) and (S,) of the same S states, A actions and K outcomes"
    numbers = model.next_state
    if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= num_states:
        return f"next_state: numbers of the {num_states} states"
    if model.probability.min() < 0 or not np.allclose(model.probability.sum(axis=2), 1):
        return "probability: shares that sum to 1 over the outcomes of each action"
    if not np.isfinite(model.reward).all():
        return "reward: finite numbers"
    if states is not None and model.non_terminal_states != list(states):
        return "states: those of the view's `states`, in the same order, and terminal ones"
    try:
        any(map(model.row, starts or ()))
    except ValueError as error:
        return f"the view's `starts` among its states ({error})"
    return None


def all_chains(num_actions: int, max_chain_length: int) -> list[tuple[int, ...]]:
    """Every chain, the shortest first, in the order of `ChainGrammar.completions`."""
    lengths = range(1, max_chain_length + 1)
    return [chain for n in lengths for chain in product(range(num_actions), repeat=n)]


def pad_chains(chains: Sequence[Sequence[int]]) -> np.ndarray:
    """Chains of different lengths as one array (C, L), padded with −1."""
    padded = np.full((len(chains), max(map(len, chains))), -1)
    for row, chain in zip(padded, chains, strict=True):
        row[: len(chain)] = chain
    return padded


def action_values(model: TabularModel, values: np.ndarray, gamma: float = 1.0) -> np.ndarray:
    """Q (…, S, A) of single actions, E[r + γ V(s')], by the values V (…, S) of states."""
    targets = model.reward + gamma * values[..., model.next_state]
    return (model.probability * targets).sum(axis=-1)


def optimal_values(model: TabularModel, gamma: float, max_iterations: int = 100_000) -> np.ndarray:
    """V* (N,) under single actions, each discounted by `gamma`, by value iteration.

    V(s) ← max_a Σ_k p_k (r_k + γ V(s'_k)), until no value moves by more than 1e-12 of the largest;
    `ValueError` without convergence, as with rewards to collect for ever and `gamma` 1.
    """
    return settled(model, lambda v: action_values(model, v, gamma).max(axis=1), max_iterations)


def settled(
    model: TabularModel, update: Callable[[np.ndarray], np.ndarray], most: int = 100_000
) -> np.ndarray:
    """Values (N,) that an update of values (S,) leaves as they are; `ValueError` if none do."""
    values = np.zeros(len(model.terminal))
    for _ in range(most):
        previous, values = values, update(values)
        if np.abs(values - previous).max() <= 1e-12 * max(1.0, np.abs(values).max()):
            return values[model.non_terminal]
    raise ValueError(f"gamma: expected values to converge in {most} sweeps; take a smaller one")


def _is_best(model: TabularModel, gamma: float = FAR_SIGHTED) -> np.ndarray:
    """Whether each action (S, A) is among the best."""
    values = np.zeros(len(model.terminal))
    values[model.non_terminal] = optimal_values(model, gamma)
    return is_greatest(action_values(model, values, gamma), tolerance=1e-9)


def _distances(model: TabularModel) -> np.ndarray:
    """Fewest actions (S,) to a goal, by relaxation from the goals outwards."""
    if not model.deterministic:
        raise ValueError("model: expected a deterministic one, its actions have several outcomes")
    distances = np.where(model.goal, 0.0, np.inf)
    while True:
        shorter = np.minimum(distances, 1 + distances[model.next_state[:, :, 0]].min(axis=1))
        if (shorter == distances).all():
            return distances
        distances = shorter


def shortest_paths(model: TabularModel) -> np.ndarray:
    """Fewest actions (N,) to a goal, infinite where there is no way; `ValueError` if stochastic."""
    return _distances(model)[model.non_terminal]


@lru_cache(maxsize=8)
def goes_by_reward(model: TabularModel) -> bool:
    """Whether, without dice, what earns most is best, and not who is first at the goal.

    That is so where the first action of a shortest path is not among the best of its state.
    """
    if not model.deterministic:
        return False
    distances = _distances(model)
    solvable = ~model.terminal & np.isfinite(distances)
    first = distances[model.next_state[:, :, 0]].argmin(axis=1)
    is_best = np.take_along_axis(_is_best(model), first[:, None], axis=1)[:, 0]
    return not solvable.any() or not is_best[solvable].all()


def optimal_chains(model: TabularModel, max_chain_length: int) -> list[tuple[int, ...]]:
    """For each non-terminal state the best way, cut to the longest legal chain.

    That is a shortest path to a goal, and none, (), where there is no way; or what earns most,
    where rewards lead elsewhere (`goes_by_reward`). Among equally good ways the one whose first
    differing action has the lowest number; a `ValueError` if the model is stochastic.
    """
    successors, distances = model.next_state[:, :, 0], _distances(model)
    best, lost = distances[successors].argmin(axis=1), np.isinf(distances)
    if goes_by_reward(model):
        best, lost = _is_best(model).argmax(axis=1), np.zeros_like(lost)
    chains = []
    for state in model.non_terminal:
        chain = []
        while not (model.terminal[state] or lost[state]) and len(chain) < max_chain_length:
            chain.append(int(best[state]))
            state = successors[state, best[state]]
        chains.append(tuple(chain))
    return chains


def solution_lengths(model: TabularModel, gamma: float, longest: int = 1000) -> np.ndarray:
    """Actions (N,) that an optimal player of single actions takes to the end, in expectation.

    Infinite where that is `longest` and more, as where nothing leads to an end.
    """
    best = _is_best(model, gamma).argmax(axis=1)
    rows = np.arange(len(best))
    successors, shares = model.next_state[rows, best], model.probability[rows, best]
    lengths = np.zeros(len(best))
    for _ in range(longest):
        lengths = np.where(model.terminal, 0.0, 1 + (shares * lengths[successors]).sum(axis=1))
    return np.where(lengths < longest - 1, lengths, np.inf)[model.non_terminal]


def chain_values(
    model: TabularModel,
    values: np.ndarray,
    max_chain_length: int,
    gamma: float = 1.0,
    discount_per: DiscountPer = "action",
) -> np.ndarray:
    """Q (C, S) of every chain of at most L actions, played open loop, in the order of `all_chains`.

    Q(s, c) = E[Σ_j γ^j r_j + γ^k V(s')], from the last action to the first: of a chain c that is
    the action a and then the chain c', Q(s, c) = E[r + γ Q(s', c')]. With `discount_per="chain"`,
    γ^j becomes 1 and γ^k becomes γ. `values` (S,) are V after the chain, 0 in terminal states; with
    `gamma` 1 they may have others.
    """
    discount = Discount(gamma, discount_per)
    longer, levels = (discount.after(0) * values)[None], []
    for _ in range(max_chain_length):
        expected = action_values(model, longer, discount.inside)  # (chains so far, S, A)
        longer = np.moveaxis(expected, 2, 0).reshape(-1, len(values))
        levels.append(longer)
    return np.concatenate(levels)


def ends_of_chains(
    model: TabularModel, starts: np.ndarray, chains: np.ndarray, gamma: float
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Where B chains end, each played open loop from a start of its own, and what they earn.

    Args:
        starts: (B,) numbers of states.
        chains: (B, L), padded with −1.
        gamma: discount of each action's reward, from the first action of the chain on.

    Returns:
        Which chain ends in which state with what probability, (P,) each; expected rewards (B,).
    """
    num_chains, num_outcomes = len(starts), model.next_state.shape[2]
    lengths, rewards, ends = (chains >= 0).sum(axis=1), np.zeros(num_chains), []
    played, states, weights = np.arange(num_chains), starts, np.ones(num_chains)
    for step in range(chains.shape[1] + 1):  # all side by side, one action at a time
        over = model.terminal[states] | (lengths[played] == step)
        ends.append((played[over], states[over], weights[over]))
        played, states, weights = played[~over], states[~over], weights[~over]
        if len(played) == 0:
            break
        actions = chains[played, step]
        shares = weights[:, None] * model.probability[states, actions]
        earned = (shares * model.reward[states, actions]).sum(axis=1)
        rewards += gamma**step * np.bincount(played, earned, num_chains)
        played, weights = np.repeat(played, num_outcomes), shares.ravel()
        states = model.next_state[states, actions].ravel()
        if num_outcomes > 1:  # those of one chain that meet are added up, else they multiply
            places = played * len(model.terminal) + states
            places, inverse = np.unique(places[weights > 0], return_inverse=True)
            weights = np.bincount(inverse, weights[weights > 0])
            played, states = np.divmod(places, len(model.terminal))
    return tuple(map(np.concatenate, zip(*ends, strict=True))), rewards


def policy_values(
    model: TabularModel,
    chains: np.ndarray,
    probabilities: np.ndarray,
    gamma: float,
    discount_per: DiscountPer = "action",
    invalid_penalty: float = 0.0,
    chain_cost: float = 0.0,
) -> np.ndarray:
    """V^π (N,) of a policy that answers each state with a chain drawn from a distribution.

    Solves V = b + P V, where, over chains c played open loop until they are exhausted or the
    episode ends (Sutton, Precup, Singh 1999, with chains as options),

        b(s) = Σ_c π(c|s) E[Σ_j γ^j r_j] + π(invalid|s)·invalid_penalty − chain_cost
        P(s, s') = Σ_c π(c|s) γ^k Pr(s' after the k actions of c, not terminal)
                   + π(invalid|s) γ [s' = s]

    With `discount_per="chain"`, γ^j becomes 1 and γ^k becomes γ. Time limits are ignored.

    Args:
        chains: (C, L), padded with −1; see `pad_chains`.
        probabilities: (N, C); what is missing to 1 in a row is the probability of an invalid
            completion, which leaves the state as it is and counts as one action.

    Raises:
        ValueError: the probabilities are none.
        ConfigError: values without bound (`gamma` 1, and a policy that hardly ever ends).
    """
    num_states, discount = len(model.non_terminal), Discount(gamma, discount_per)
    if probabilities.shape != (expected := (num_states, len(chains))):
        raise ValueError(f"probabilities: expected shape {expected}, got {probabilities.shape}")
    if (probabilities < 0).any() or (probabilities.sum(axis=1) > 1 + 1e-6).any():
        raise ValueError("probabilities: expected at least 0 each and at most 1 in every row")
    invalid = np.clip(1.0 - probabilities.sum(axis=1), 0.0, 1.0)
    rows, columns = np.nonzero(probabilities)
    shares, starts = probabilities[rows, columns], model.non_terminal[rows]
    ends, rewards = ends_of_chains(model, starts, chains[columns], discount.inside)
    earned = invalid * invalid_penalty - chain_cost
    earned += np.bincount(rows, shares * rewards, num_states)
    played, states, weights = (of_end[~model.terminal[ends[1]]] for of_end in ends)
    weights = weights * shares[played] * discount.after((chains >= 0).sum(axis=1)[columns[played]])
    cells = rows[played] * num_states + model.row_of_state[states]
    transition = np.bincount(cells, weights, num_states**2).reshape(num_states, num_states)
    with suppress(np.linalg.LinAlgError):
        values = np.linalg.solve(np.diag(1.0 - gamma * invalid) - transition, earned)
        if np.abs(values).max() <= ENDLESS * np.abs(earned).max():
            return values
    raise ConfigError("gamma: expected less than 1, since this policy can go on for ever")
