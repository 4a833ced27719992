"""Exact figures of chains in small worlds with chance: what is best, and what can be expected.

A chain is played open loop: its later actions are chosen before the dice fall. So there is an
optimum of its own for each longest chain, and for each number of chains in an episode. The optima
that were asked for last are remembered: each evaluation of a run asks for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lactchain.environments.exact import (
    DiscountPer,
    TabularModel,
    all_chains,
    chain_values,
    pad_chains,
    policy_values,
)
from lactchain.functional.ties import is_greatest
from lactchain.types import Discount

UNDISCOUNTED = Discount(1.0, "action")
_remembered = lru_cache(maxsize=8)
_PER_STATE = ("probability", "reward", "terminal", "goal")


@_remembered
def best_chains(
    model: TabularModel,
    max_chain_length: int,
    gamma: float,
    discount_per: DiscountPer = "action",
    chain_cost: float = 0.0,
) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
    """V* (N,) over chains of at most L actions, and the best chain of each of the N states.

    Policy iteration (Howard 1960) with chains as options (Sutton, Precup, Singh 1999), as in
    `policy_values`. Among equally good chains the shortest, and of these the one whose first
    differing action has the lowest number.

    Raises:
        ValueError: `gamma` is 1, and a policy on the way never ends an episode.
    """
    chains = all_chains(model.next_state.shape[1], max_chain_length)
    padded, values = pad_chains(chains), np.zeros(len(model.terminal))
    chosen, _ = _choose(model, values, max_chain_length, gamma, discount_per)
    while True:
        used, columns = np.unique(chosen, return_inverse=True)
        values[model.non_terminal] = policy_values(
            model, padded[used], np.eye(len(used))[columns], gamma, discount_per, 0.0, chain_cost
        )
        best, gain = _choose(model, values, max_chain_length, gamma, discount_per, chosen)
        if not gain.any():
            return _read_only(values, model), tuple(chains[number] for number in best)
        chosen = np.where(gain, best, chosen)


def best_values(
    model: TabularModel,
    max_chain_length: int,
    gamma: float,
    discount_per: DiscountPer = "action",
    chain_cost: float = 0.0,
) -> np.ndarray:
    """V* (N,) over chains of at most L actions, as `best_chains` gives, with `gamma` below 1.

    Without dice by value iteration, for which chains need not be gone through one by one: nothing
    is learnt within a chain, so that the best one takes the best action in each state.
    """
    if not model.deterministic:
        return best_chains(model, max_chain_length, gamma, discount_per, chain_cost)[0]
    discount, values = Discount(gamma, discount_per), np.zeros(len(model.terminal))
    while True:
        chains = _one_by_one(model, discount.after(0) * values, max_chain_length, np.max, discount)
        better = np.where(model.terminal, 0.0, np.max(list(chains), axis=0) - chain_cost)
        if np.abs(better - values).max() <= 1e-12 * max(1.0, np.abs(values).max()):
            return better[model.non_terminal]
        values = better


def _choose(
    model: TabularModel,
    values: np.ndarray,
    max_chain_length: int,
    gamma: float,
    discount_per: DiscountPer,
    chosen: np.ndarray | int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The first of the best chains (N,), by values (S,), and whether it beats the chosen one."""
    q = chain_values(model, values, max_chain_length, gamma, discount_per)[:, model.non_terminal]
    best = is_greatest(q, axis=0, tolerance=1e-9)
    return best.argmax(axis=0), ~best[chosen, np.arange(q.shape[1])]


@_remembered
def best_within(
    model: TabularModel, num_chains: int, max_chain_length: int, chain_cost: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Greatest chance of success (N,) and greatest expected return (N,) in a number of chains.

    Returns are undiscounted. Each is of a policy of its own, which may go by the chains that are
    left: no policy that reads the state alone does better.
    """
    return _within(model, num_chains, max_chain_length, chain_cost, _best)


@_remembered
def random_within(
    model: TabularModel, num_chains: int, max_chain_length: int, chain_cost: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The same of `RandomChains`: lengths are uniform, and so are the actions of a chain."""
    return _within(model, num_chains, max_chain_length, chain_cost, _random)


def _within(
    model: TabularModel,
    num_chains: int,
    max_chain_length: int,
    chain_cost: float,
    after_chain: Callable[[TabularModel, np.ndarray, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    success, returns = model.goal.astype(float), np.zeros(len(model.terminal))
    unpaid = replace(model, reward=np.zeros_like(model.reward))
    for _ in range(num_chains):
        reached = after_chain(unpaid, success, max_chain_length)
        success = np.where(model.terminal, success, reached)
        earned = after_chain(model, returns, max_chain_length) - chain_cost
        returns = np.where(model.terminal, 0.0, earned)
    return _read_only(success, model), _read_only(returns, model)


def _best(model: TabularModel, values: np.ndarray, max_chain_length: int) -> np.ndarray:
    """Greatest value (S,) of a chain, the state after it being worth `values` (S,)."""
    if not model.deterministic:
        return chain_values(model, values, max_chain_length).max(axis=0)
    # Without dice nothing is learnt on the way: the best chain takes the best action in each state.
    return np.max(list(_one_by_one(model, values, max_chain_length, np.max)), axis=0)


def _random(model: TabularModel, values: np.ndarray, max_chain_length: int) -> np.ndarray:
    """Expected value (S,) of a random chain, the state after it being worth `values` (S,)."""
    return np.mean(list(_one_by_one(model, values, max_chain_length, np.mean)), axis=0)


def _one_by_one(
    model: TabularModel,
    values: np.ndarray,
    max_chain_length: int,
    over_actions: Callable,
    discount: Discount = UNDISCOUNTED,
) -> Iterator[np.ndarray]:
    """Values (S,) of the actions of chains of 1, 2, … actions, each chosen in its own state."""
    for _ in range(max_chain_length):
        targets = model.reward + discount.inside * values[model.next_state]
        expected = (model.probability * targets).sum(axis=2)
        values = over_actions(expected, axis=1)
        yield values


def _read_only(values: np.ndarray, model: TabularModel) -> np.ndarray:
    """Those of values (S,) of states that are not terminal (N,); others may be given them too."""
    values = values[model.non_terminal]
    values.flags.writeable = False
    return values


def play_chains(
    model: TabularModel, starts: np.ndarray, chains: np.ndarray, gamma: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Where B chains lead, each played open loop from a start of its own, and what they earn.

    Args:
        starts: (B,) numbers of states.
        chains: (B, L), padded with −1.
        gamma: discount of each action's reward, from the first action of the chain on.

    Returns:
        Probabilities (B, S) of the states after, and expected rewards (B,).
    """
    reach, rewards = np.eye(len(model.terminal))[starts], np.zeros(len(starts))
    expected = (model.probability * model.reward).sum(axis=2)
    for step, actions in enumerate(chains.T):
        for action in range(expected.shape[1]):
            rows = actions == action
            rewards[rows] += gamma**step * reach[rows] @ expected[:, action]
            reach[rows] = reach[rows] @ _transition(model, action)
    return reach, rewards


def with_bumps(model: TabularModel) -> TabularModel:
    """A model of 2S states, which tell whether some action has left the state as it was.

    State s before any has is number s, and after that S + s.
    """
    num_states = len(model.terminal)
    bumped = model.next_state == np.arange(num_states)[:, None, None]
    after = model.next_state + num_states * bumped, model.next_state + num_states
    twice = {name: np.concatenate([getattr(model, name)] * 2) for name in _PER_STATE}
    return TabularModel(np.concatenate(after), **twice, states=model.states * 2)


def _transition(model: TabularModel, action: int) -> np.ndarray:
    """Probabilities (S, S) of the states after an action in each state."""
    dense = np.zeros((len(model.terminal),) * 2)
    states = np.arange(len(model.terminal))[:, None]
    np.add.at(dense, (states, model.next_state[:, action]), model.probability[:, action])
    return dense
