"""The truth about small environments: optimal values, shortest paths, values of a chain policy.

A `TabularModel` is a Markov decision process in arrays, taken from the very tables that the
environment plays. Everything here ignores time limits: it answers what a state is worth, not what
is left of an episode, which is also what a critic that bootstraps at truncation estimates.

Arrays over states that are returned have one row for each of the N non-terminal states, in the
order of `TabularModel.non_terminal_states`, which is the order of a text view's `states`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

DiscountPer = Literal["action", "chain"]


@dataclass(frozen=True)
class TabularModel:
    """S states, A actions, and K possible outcomes of an action (K = 1: deterministic).

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

    @cached_property
    def non_terminal(self) -> np.ndarray:
        """Numbers (N,) of the states that are not terminal, ascending."""
        return np.flatnonzero(~self.terminal)

    @cached_property
    def row_of_state(self) -> np.ndarray:
        """Row (S,) of each state in arrays over N states; −1 for terminal ones."""
        rows = np.full(len(self.terminal), -1)
        rows[self.non_terminal] = np.arange(len(self.non_terminal))
        return rows

    @property
    def deterministic(self) -> bool:
        """Whether every action has a single outcome."""
        return self.next_state.shape[2] == 1

    @property
    def non_terminal_states(self) -> list[dict[str, int]]:
        """The N states that are not terminal, as text views name them."""
        return [dict(self.states[number]) for number in self.non_terminal]

    @cached_property
    def _rows(self) -> dict[tuple[int, ...], int]:
        return {tuple(s.values()): row for row, s in enumerate(self.non_terminal_states)}

    def row(self, state: Mapping[str, int]) -> int:
        """The row of a non-terminal state in arrays over N states.

        Raises:
            ValueError: there is no such state, or it is terminal.
        """
        try:
            return self._rows[tuple(state[name] for name in self.states[0])]
        except KeyError as error:
            raise ValueError(f"state: expected a non-terminal state, got {state}") from error


def model_of_transitions(
    transitions: Mapping[Any, Any], starts: list[int], good: np.ndarray | None = None
) -> TabularModel:
    """The model of `P[state][action] = [(probability, next state, reward, terminated), ...]`.

    It holds the states that can be reached from a start. `good` says which states are good ones to
    end in; None: all of them.
    """
    reached, ended = _explore(transitions, starts)
    numbers = {state: number for number, state in enumerate(sorted(reached))}
    num_actions = len(transitions[starts[0]])
    num_outcomes = max(len(outcomes) for s in reached for outcomes in transitions[s].values())
    shape = (len(numbers), num_actions, num_outcomes)
    next_state = np.broadcast_to(np.arange(shape[0])[:, None, None], shape).copy()
    probability, reward = np.zeros(shape), np.zeros(shape)
    probability[:, :, 0] = 1.0
    for state in reached - ended:
        for action, outcomes in transitions[state].items():
            for k, (p, successor, r, _) in enumerate(outcomes):
                cell = numbers[state], action, k
                next_state[cell], probability[cell], reward[cell] = numbers[successor], p, r
    terminal = np.array([state in ended for state in numbers])
    return TabularModel(
        next_state=next_state,
        probability=probability,
        reward=reward,
        terminal=terminal,
        goal=terminal if good is None else terminal & good[list(numbers)],
        states=tuple({"state": state} for state in numbers),
    )


def _explore(transitions: Mapping[Any, Any], starts: list[int]) -> tuple[set[int], set[int]]:
    """All states within reach of a start, and those in which an episode ends."""
    reached, ended, frontier = set(starts), set(), list(starts)
    while frontier:
        for outcomes in transitions[frontier.pop()].values():
            for _, successor, _, terminated in outcomes:
                state = int(successor)
                if terminated:
                    ended.add(state)
                elif state not in reached:
                    frontier.append(state)
                reached.add(state)
    return reached, ended


def optimal_values(model: TabularModel, gamma: float, max_iterations: int = 100_000) -> np.ndarray:
    """V* (N,) under single actions, each discounted by `gamma`, by value iteration.

    V(s) ← max_a Σ_k p_k (r_k + γ V(s'_k)), until no value moves by more than 1e-12 of the largest.

    Raises:
        ValueError: no convergence, as with rewards to collect for ever and `gamma` 1.
    """
    values = np.zeros(len(model.terminal))
    for _ in range(max_iterations):
        previous = values
        targets = model.reward + gamma * previous[model.next_state]
        values = (model.probability * targets).sum(axis=2).max(axis=1)
        if np.abs(values - previous).max() <= 1e-12 * max(1.0, np.abs(values).max()):
            return values[model.non_terminal]
    raise ValueError(f"gamma: expected values to converge in {max_iterations} sweeps, got {gamma}")


def shortest_paths(model: TabularModel) -> np.ndarray:
    """Fewest actions (N,) from each state to a goal; infinite where there is no way.

    Raises:
        ValueError: the model is stochastic.
    """
    return _distances(model)[model.non_terminal]


def optimal_chains(model: TabularModel, max_chain_length: int) -> list[tuple[int, ...]]:
    """For each non-terminal state a shortest path to a goal, cut to the longest legal chain.

    Among equally short paths the one whose first differing action has the lowest number.

    Raises:
        ValueError: the model is stochastic, or some state has no way to a goal.
    """
    distances = _distances(model)
    if np.isinf(distances[model.non_terminal]).any():
        stuck = model.non_terminal[np.isinf(distances[model.non_terminal])][0]
        raise ValueError(f"model: expected a way to the goal, none from {model.states[stuck]}")
    successors = model.next_state[:, :, 0]
    best = distances[successors].argmin(axis=1)
    chains = []
    for state in model.non_terminal:
        chain = []
        while not model.terminal[state] and len(chain) < max_chain_length:
            chain.append(int(best[state]))
            state = successors[state, best[state]]
        chains.append(tuple(chain))
    return chains


def optimal_chain(
    model: TabularModel, state: Mapping[str, int], max_chain_length: int
) -> tuple[int, ...]:
    """The chain of `optimal_chains` for one non-terminal state."""
    return optimal_chains(model, max_chain_length)[model.row(state)]


def all_chains(num_actions: int, max_chain_length: int) -> np.ndarray:
    """Every chain of 1 to `max_chain_length` actions, short ones first (C, L), padded with −1."""
    return pad_chains(
        [
            chain
            for length in range(1, max_chain_length + 1)
            for chain in itertools.product(range(num_actions), repeat=length)
        ]
    )


def pad_chains(chains: Sequence[Sequence[int]]) -> np.ndarray:
    """Chains of different lengths as one array (C, L), padded with −1."""
    padded = np.full((len(chains), max(map(len, chains))), -1)
    for row, chain in zip(padded, chains, strict=True):
        row[: len(chain)] = chain
    return padded


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
        chains: (C, L), padded with −1; see `all_chains`, `pad_chains`.
        probabilities: (N, C); what is missing to 1 in a row is the probability of an invalid
            answer, which leaves the state as it is and counts as one action.

    Raises:
        ValueError: the probabilities are none, or the values are not finite (a policy that never
            ends an episode, with `gamma` 1).
    """
    num_states = len(model.non_terminal)
    _check_policy(chains, probabilities, num_states)
    invalid = np.clip(1.0 - probabilities.sum(axis=1), 0.0, 1.0)
    expected = invalid * invalid_penalty - chain_cost
    transition = np.zeros(num_states * num_states)
    rows, columns = np.nonzero(probabilities)
    start = _Particles(rows, columns, model.non_terminal[rows], probabilities[rows, columns])
    for step, ended, earned, rewards in _play(model, chains, start):
        reward_discount, value_discount = _discounts(gamma, step, discount_per)
        expected += reward_discount * np.bincount(earned.rows, rewards, num_states)
        cells = ended.rows * num_states + model.row_of_state[ended.states]
        np.add.at(transition, cells, value_discount * ended.weights)
    system = np.eye(num_states) - transition.reshape(num_states, num_states)
    system -= gamma * np.diag(invalid)
    try:
        return np.linalg.solve(system, expected)
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "gamma: expected less than 1, since this policy can go on for ever"
        ) from error


def chain_values(
    model: TabularModel,
    values: np.ndarray,
    chains: np.ndarray,
    gamma: float,
    discount_per: DiscountPer = "action",
    chain_cost: float = 0.0,
) -> np.ndarray:
    """Q(s, c) (N, C) of every chain in every state, followed by states worth `values` (N,).

    Q(s, c) = E[Σ_j γ^j r_j + γ^k V(s')] − chain_cost, V = 0 in terminal states; Q − V is the
    advantage that ranks chains.
    """
    shape = len(model.non_terminal), len(chains)
    rows, columns = (index.ravel() for index in np.indices(shape))
    start = _Particles(rows, columns, model.non_terminal[rows], np.ones(len(rows)))
    totals = np.full(shape[0] * shape[1], -float(chain_cost))
    for step, ended, earned, rewards in _play(model, chains, start):
        reward_discount, value_discount = _discounts(gamma, step, discount_per)
        cells = earned.rows * shape[1] + earned.columns
        totals += reward_discount * np.bincount(cells, rewards, len(totals))
        cells = ended.rows * shape[1] + ended.columns
        worth = ended.weights * values[model.row_of_state[ended.states]]
        totals += value_discount * np.bincount(cells, worth, len(totals))
    return totals.reshape(shape)


class _Particles(NamedTuple):
    """Chains under way: chain `columns[i]`, begun in row `rows[i]`, is now in `states[i]`.

    `weights` are probabilities; all fields have shape (P,).
    """

    rows: np.ndarray
    columns: np.ndarray
    states: np.ndarray
    weights: np.ndarray

    def where(self, mask: np.ndarray) -> _Particles:
        return _Particles(*(field[mask] for field in self))


def _play(
    model: TabularModel, chains: np.ndarray, particles: _Particles
) -> Iterator[tuple[int, _Particles, _Particles, np.ndarray]]:
    """Plays all chains side by side, one action at a time.

    Yields, for step = 0, 1, ...: the number of actions played so far, the particles whose chain is
    now exhausted, those that go on, and what these earn by their next action, times their weight.
    """
    lengths = (chains >= 0).sum(axis=1)
    for step in range(chains.shape[1] + 1):
        exhausted = lengths[particles.columns] == step
        ended, going = particles.where(exhausted), particles.where(~exhausted)
        actions = chains[going.columns, min(step, chains.shape[1] - 1)]
        weights = going.weights[:, None] * model.probability[going.states, actions]
        rewards = (weights * model.reward[going.states, actions]).sum(axis=1)
        yield step, ended, going, rewards
        particles = _merge(_spread(model, going, actions, weights), model, len(chains))


def _spread(
    model: TabularModel, particles: _Particles, actions: np.ndarray, weights: np.ndarray
) -> _Particles:
    """One particle for each outcome that is possible and does not end the episode."""
    num_outcomes = weights.shape[1]
    spread = _Particles(
        np.repeat(particles.rows, num_outcomes),
        np.repeat(particles.columns, num_outcomes),
        model.next_state[particles.states, actions].ravel(),
        weights.ravel(),
    )
    return spread.where(~model.terminal[spread.states] & (spread.weights > 0))


def _merge(particles: _Particles, model: TabularModel, num_chains: int) -> _Particles:
    """Adds up the particles of one chain that met in one state, so that they do not multiply."""
    num_states, _, num_outcomes = model.next_state.shape
    if num_outcomes == 1:
        return particles
    keys = (particles.rows * num_chains + particles.columns) * num_states + particles.states
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    weights = np.bincount(inverse, particles.weights, len(unique))
    return particles.where(first)._replace(weights=weights)


def _discounts(gamma: float, step: int, discount_per: DiscountPer) -> tuple[float, float]:
    """Factors of the reward of action `step`, and of the value of the state before it."""
    if discount_per not in ("action", "chain"):
        raise ValueError(f"discount_per: expected action or chain, got {discount_per!r}")
    return (gamma**step, gamma**step) if discount_per == "action" else (1.0, gamma)


def _check_policy(chains: np.ndarray, probabilities: np.ndarray, num_states: int) -> None:
    if probabilities.shape != (num_states, len(chains)):
        expected = num_states, len(chains)
        raise ValueError(f"probabilities: expected shape {expected}, got {probabilities.shape}")
    if (probabilities < 0).any() or (probabilities.sum(axis=1) > 1 + 1e-6).any():
        raise ValueError("probabilities: expected at least 0 each and at most 1 in every row")


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
