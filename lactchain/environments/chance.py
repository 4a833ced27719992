"""Exact figures of chains in small worlds with chance: what is best, and what can be expected.

A chain is played open loop: its later actions are chosen before the dice fall. So there is an
optimum of its own for each longest chain, and for each number of chains in an episode. The optima
that were asked for last are remembered: each evaluation of a run asks for the same.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lactchain.environments import exact
from lactchain.environments.exact import DiscountPer, TabularModel, chain_values
from lactchain.functional.ties import is_greatest
from lactchain.types import Discount

_remembered = lru_cache(maxsize=8)


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
    differing action has the lowest number. `ConfigError` if `gamma` is 1, and a policy on the way
    never ends an episode.
    """
    chains = exact.all_chains(model.next_state.shape[1], max_chain_length)
    padded, values = exact.pad_chains(chains), np.zeros(len(model.terminal))
    chosen = np.full(len(model.non_terminal), -1)
    while True:
        q = chain_values(model, values, max_chain_length, gamma, discount_per)
        best = is_greatest(q[:, model.non_terminal], axis=0, tolerance=1e-9)
        better, first = (chosen < 0) | ~best[chosen, np.arange(len(chosen))], best.argmax(axis=0)
        if not better.any():
            return _read_only(values, model), tuple(chains[number] for number in first)
        chosen = np.where(better, first, chosen)
        used, columns = np.unique(chosen, return_inverse=True)
        values[model.non_terminal] = exact.policy_values(
            model, padded[used], np.eye(len(used))[columns], gamma, discount_per, 0.0, chain_cost
        )


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
    discount = Discount(gamma, discount_per)

    def better(values: np.ndarray) -> np.ndarray:
        after = discount.after(0) * values
        best = _action_by_action(model, after, max_chain_length, np.max, discount.inside)
        return np.where(model.terminal, 0.0, best - chain_cost)

    return exact.settled(model, better)


@_remembered
def within_chains(
    model: TabularModel,
    num_chains: int,
    longest: int,
    chain_cost: float = 0.0,
    over: Callable[..., np.ndarray] = np.max,
) -> tuple[np.ndarray, np.ndarray]:
    """Chance of success (N,) and expected return (N,), undiscounted, in a number of chains.

    By default the greatest, each of a policy of its own, which may go by the chains that are left:
    no policy that reads the state alone does better. `over` `np.mean`: those of `RandomChains`,
    whose lengths are uniform, and so are the actions of a chain.
    """

    def after_chain(model: TabularModel, values: np.ndarray) -> np.ndarray:
        if over is np.max and not model.deterministic:
            return chain_values(model, values, longest).max(axis=0)
        return _action_by_action(model, values, longest, over)

    success, returns = model.goal.astype(float), np.zeros(len(model.terminal))
    unpaid = replace(model, reward=np.zeros_like(model.reward))
    for _ in range(num_chains):
        success = np.where(model.terminal, success, after_chain(unpaid, success))
        returns = np.where(model.terminal, 0.0, after_chain(model, returns) - chain_cost)
    return _read_only(success, model), _read_only(returns, model)


def _action_by_action(
    model: TabularModel, values: np.ndarray, longest: int, over: Callable, gamma: float = 1.0
) -> np.ndarray:
    """Values (S,) over chains of 1, …, L actions, each of which is chosen in its own state.

    Without dice the greatest is that of the best chain: nothing is learnt on the way.
    """
    levels = []
    for _ in range(longest):
        values = over(exact.action_values(model, values, gamma), axis=1)
        levels.append(values)
    return over(levels, axis=0)


def _read_only(values: np.ndarray, model: TabularModel) -> np.ndarray:
    """Those of values (S,) of states that are not terminal (N,); others may be given them too."""
    values = values[model.non_terminal]
    values.flags.writeable = False
    return values


def play_chains(
    model: TabularModel, starts: np.ndarray, chains: np.ndarray, gamma: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """How likely each of the S states is after each of B chains (B, S); expected rewards (B,).

    They are played as in `exact.ends_of_chains`, which also says what the arguments are.
    """
    (played, states, weights), rewards = exact.ends_of_chains(model, starts, chains, gamma)
    reach = np.zeros((len(starts), len(model.terminal)))
    np.add.at(reach, (played, states), weights)
    return reach, rewards


def with_bumps(model: TabularModel) -> TabularModel:
    """A model of 2S states, which tell whether some action has left the state as it was.

    State s before any has is number s, and after that S + s.
    """
    num_states = len(model.terminal)
    bumped = model.next_state == np.arange(num_states)[:, None, None]
    after = model.next_state + num_states * bumped, model.next_state + num_states
    per_state = ("probability", "reward", "terminal", "goal")
    twice = {name: np.concatenate([getattr(model, name)] * 2) for name in per_state}
    return TabularModel(np.concatenate(after), **twice, states=model.states * 2)
