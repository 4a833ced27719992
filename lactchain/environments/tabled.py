"""Views of worlds whose dynamics are arrays: an attribute `tables`, and the number of a state.

`tables` has the exact model as `model`, the numbers of the states that episodes may begin in as
`start_states`, and what JSON can hold of a numbered state as `state_fields(number)`. The number of
the state that the world is in is `state`; `reset(options={"state": fields})` begins in another.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from lactchain.environments.exact import TabularModel
from lactchain.environments.views import State, TextView, reset_into


def tabled_view(**fields: Any) -> TextView:
    """A view whose states, starts and model are those of the tables; `fields` are all others."""
    return TextView(
        get_state=_state,
        set_state=reset_into,
        states=_states,
        starts=_starts,
        model=_model,
        **fields,
    )


def _state(env: gym.Env) -> State:
    return env.unwrapped.tables.state_fields(env.unwrapped.state)


def _states(env: gym.Env) -> list[State]:
    return _model(env).non_terminal_states


def _starts(env: gym.Env) -> list[State]:
    tables = env.unwrapped.tables
    return list(map(tables.state_fields, tables.start_states))


def _model(env: gym.Env) -> TabularModel:
    return env.unwrapped.tables.model
