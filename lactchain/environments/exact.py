"""The truth about small environments: optimal values, shortest paths, values of a chain policy.

A `TabularModel` is a Markov decision process in arrays, taken from the very tables that the
environment plays. Everything here ignores time limits: it answers what a state is worth, not what
is left of an episode, which is also what a critic that bootstraps at truncation estimates.

Arrays over states that are returned have one row for each of the N non-terminal states, in the
order of `TabularModel.non_terminal_states`, which is the order of a text view's `states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lactchain.environments.gridworld import GridWorld


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


def tabular_model(env: gym.Env) -> TabularModel:
    """The model of a `GridWorld`, or of Gymnasium's FrozenLake, CliffWalking or Taxi.

    Of Gymnasium's, it holds the states that can be reached from a start, as their table `P` has
    them; terminal states entered with the highest reward are goals.

    Raises:
        ValueError: the environment is none of these.
    """
    world = env.unwrapped
    if isinstance(world, GridWorld):
        return _gridworld_model(world)
    if isinstance(world, FrozenLakeEnv | CliffWalkingEnv | TaxiEnv):
        starts = np.flatnonzero(world.initial_state_distrib).tolist()
        return _model_of_transitions(world.P, starts)
    raise ValueError(f"env: expected a GridWorld, FrozenLake, CliffWalking or Taxi, got {world}")


def _gridworld_model(world: GridWorld) -> TabularModel:
    tables = world.tables
    ended = tables.terminal[:, None]
    here = np.arange(len(tables.terminal))[:, None]
    reward = np.where(ended, 0.0, tables.rewards)[:, :, None]
    return TabularModel(
        next_state=np.where(ended, here, tables.next_state)[:, :, None],
        probability=np.ones_like(reward),
        reward=reward,
        terminal=tables.terminal,
        goal=tables.terminal,
        states=tuple(map(tables.state_fields, range(len(tables.terminal)))),
    )


def _model_of_transitions(transitions: Mapping[Any, Any], starts: list[int]) -> TabularModel:
    """The model of `P[state][action] = [(probability, next state, reward, terminated), ...]`."""
    entered, reached = _explore(transitions, starts)
    number = {state: position for position, state in enumerate(sorted(reached))}
    num_actions = len(transitions[starts[0]])
    num_outcomes = max(len(outcomes) for s in reached for outcomes in transitions[s].values())
    shape = (len(number), num_actions, num_outcomes)
    next_state = np.broadcast_to(np.arange(shape[0])[:, None, None], shape).copy()
    probability, reward = np.zeros(shape), np.zeros(shape)
    probability[:, :, 0] = 1.0
    for state in reached - entered.keys():
        for action, outcomes in transitions[state].items():
            for k, (p, successor, r, _) in enumerate(outcomes):
                cell = number[state], action, k
                next_state[cell], probability[cell], reward[cell] = number[successor], p, r
    best = max(entered.values(), default=0.0)
    ordered = sorted(reached)
    return TabularModel(
        next_state=next_state,
        probability=probability,
        reward=reward,
        terminal=np.array([state in entered for state in ordered]),
        goal=np.array([state in entered and entered[state] == best for state in ordered]),
        states=tuple({"state": state} for state in ordered),
    )


def _explore(transitions: Mapping[Any, Any], starts: list[int]) -> tuple[dict[int, float], set]:
    """Terminal states with the highest reward of entering them, and all states within reach."""
    entered: dict[int, float] = {}
    reached, frontier = set(starts), list(starts)
    while frontier:
        for outcomes in transitions[frontier.pop()].values():
            for _, successor, reward, terminated in outcomes:
                state = int(successor)
                if terminated:
                    entered[state] = max(reward, entered.get(state, reward))
                elif state not in reached:
                    frontier.append(state)
                reached.add(state)
    return entered, reached
