"""Any environment with discrete actions, spoken to in text, a chain of actions at a time.

`TextView` says how an environment is put into words; views of GridWorld, FrozenLake, CliffWalking
and Taxi are shipped. `LanguageEnv` plays the chains. A view of another environment is a few lines:

    import gymnasium as gym
    from lactchain.environments.language import LanguageEnv, TextView

    def describe(env, observation, info):
        position, velocity = observation
        return {"position": f"{position:.2f}", "speed": f"{velocity:+.3f}"}

    def make():
        view = TextView(
            action_names=("push left", "wait", "push right"),
            template="The car is at {position}, its speed is {speed}.{feedback}",
            describe=describe,
        )
        return LanguageEnv(gym.make("MountainCar-v0"), view)

    gym.register("my/MountainCarText-v0", entry_point=make)

Registered, it can be named as `id` in every configuration; `my_module:my/MountainCarText-v0` also
imports the module. A view that says how to read, set and list states as well (`get_state`,
`set_state`, `states`) can be asked for several answers to one state, which is what preference pairs
are made of.
"""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.extractors import Rejection, make_extractor
from lactchain.environments.views import State, TextView, view_of
from lactchain.errors import ConfigError, EnvironmentFault
from lactchain.settings import EnvironmentConfig
from lactchain.types import ChainGrammar

INVALID_FEEDBACK = " That was not a legal chain of actions, so nothing was done."


class LanguageEnv(gym.Env[str, str]):
    """An environment with discrete actions that speaks text and plays chains of actions.

    ## Description
    One step is one answer: the chain of actions that the extractor finds in it is played until it
    is exhausted or the episode ends.

    ## Action Space
    `Text`: any text. What is not a legal chain is a legal step: nothing is executed, the reward is
    `invalid_penalty`, and the observation says so.

    ## Observation Space
    `Text`: the view's template, filled in. Printable ASCII and the characters of the template.

    ## Starting State
    The environment's own; or `reset(options={"state": state})`, a state as in `info["state"]`.
    Other options are the environment's.

    ## Rewards
    Sum of the rewards of the executed actions, less `chain_cost` for each answer.

    ## Episode End
    As the environment says; truncated as well after `max_chains` answers.

    ## Information
    JSON can hold it. For each executed action: `executed` (its name), `rewards`, `bumped` (it left
    the state as it was), `positions` (where it led); empty on reset. For the answer:
    `invalid_action`, `invalid_reason` (None, or a reason code of the extractor), `state` (None if
    the view cannot read it), `success` (the episode has terminated and ended well).

    ## Arguments
    - `env`: an environment with a `Discrete` action space that starts at 0.
    - `view`: how it is put into words; None: the one shipped for it.
    - `template`, `action_names`: replace the view's.
    - `extractor`: json_list, json_object or code_block.
    - `max_chain_length`: longest legal chain, in actions. `max_chains`: time limit, in answers.
    - `invalid_penalty`: reward of an answer that is no chain. `chain_cost`: cost of an answer.

    Raises `ConfigError` if these do not fit together, and `EnvironmentFault` when the environment
    breaks Gymnasium's rules: wrong tuples or types, rewards that are not finite, observations
    outside their space.

    ## Version History
    - v0: first version.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        env: gym.Env,
        view: TextView | None = None,
        *,
        template: str | None = None,
        action_names: Sequence[str] | None = None,
        extractor: str = "json_list",
        max_chain_length: int = 9,
        max_chains: int = 16,
        invalid_penalty: float = 0.0,
        chain_cost: float = 0.0,
        max_text_length: int = 4096,
    ) -> None:
        view = view or view_of(env)
        self.env = env
        self.view = dataclasses.replace(
            view,
            template=view.template if template is None else template,
            action_names=tuple(action_names or view.action_names),
        )
        self._check_arguments()
        try:
            self.extractor = make_extractor(extractor, self.view.action_names, max_chain_length)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self.max_chains = max_chains
        self.invalid_penalty = invalid_penalty
        self.chain_cost = chain_cost
        characters = frozenset(string.printable + self.view.template)
        self.observation_space = spaces.Text(max_text_length, min_length=0, charset=characters)
        self.action_space = spaces.Text(max_text_length, min_length=0, charset=characters)
        self._over = True
        self._num_chains = 0
        self._last: tuple[Any, dict[str, Any]] = (None, {})

    @property
    def grammar(self) -> ChainGrammar:
        """The answers that constrained decoding may produce."""
        return self.extractor.grammar

    def view_states(self) -> list[State]:
        """All states in which an episode is not over; each can be given to `reset`.

        Raises:
            ConfigError: the view does not list them.
        """
        if self.view.states is None:
            raise ConfigError(f"{self.env}: expected a view with `states`, and it has none")
        return self.view.states(self.env)

    def texts(self, state: State) -> tuple[str, ...]:
        """Every observation that states this state: plain, after a bump, after an invalid answer.

        Leaves the environment at the beginning of an episode in that state.
        """
        plain, _ = self.reset(options={"state": state})
        return plain, self._text(self.view.bump_feedback), self._text(INVALID_FEEDBACK)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode, where the environment starts it or in `options["state"]`."""
        super().reset(seed=seed)
        options = dict(options or {})
        state = options.pop("state", None)
        if state is None:
            result = self.env.reset(seed=seed, options=options)
        else:
            result = self._reset_into(state, seed)
        _check_reset(result, self.env)
        self._last = result
        self._over = False
        self._num_chains = 0
        return self._text(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays the chain that the text answers."""
        if self._over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before step()")
        self._num_chains += 1
        answer = self.extractor.parse(action)
        if isinstance(answer, Rejection):
            reward, terminated, truncated = self.invalid_penalty, False, False
            info = self._info() | {"invalid_action": True, "invalid_reason": answer.reason}
            text = self._text(INVALID_FEEDBACK)
        else:
            terminated, truncated, info = self._play(answer.actions)
            reward = sum(info["rewards"])
            text = self._text(self.view.bump_feedback if any(info["bumped"]) else "")
        truncated = not terminated and (truncated or self._num_chains >= self.max_chains)
        self._over = terminated or truncated
        return text, reward - self.chain_cost, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _play(self, actions: Sequence[int]) -> tuple[bool, bool, dict[str, Any]]:
        """Plays actions until they are exhausted or the episode ends."""
        executed, rewards, bumped, positions = [], [], [], []
        terminated = truncated = False
        state = self._state()
        for action in actions:
            result = self.env.step(action)
            _check_step(result, self.env)
            observation, reward, terminated, truncated, env_info = result
            before, state = state, self._state()
            executed.append(self.view.action_names[action])
            rewards.append(float(reward))
            bumped.append(state is not None and state == before)
            positions.append(self.view.position(self.env))
            if terminated or truncated:
                break
        _check_observation(observation, self.env)
        self._last = observation, env_info
        info = self._info() | {
            "executed": executed,
            "rewards": rewards,
            "bumped": bumped,
            "positions": positions,
            "success": bool(terminated) and self.view.success(self.env),
        }
        return bool(terminated), bool(truncated), info

    def _text(self, feedback: str = "") -> str:
        observation, info = self._last
        fields = self.view.describe(self.env, observation, info)
        try:
            return self.view.template.format(feedback=feedback, **fields)
        except (KeyError, IndexError) as error:
            raise ConfigError(
                f"template: expected fields out of {[*fields, 'feedback']}, got {{{error.args[0]}}}"
            ) from error

    def _info(self) -> dict[str, Any]:
        return {
            "executed": [],
            "rewards": [],
            "bumped": [],
            "positions": [],
            "invalid_action": False,
            "invalid_reason": None,
            "state": self._state(),
            "success": False,
        }

    def _state(self) -> State | None:
        return None if self.view.get_state is None else self.view.get_state(self.env)

    def _reset_into(self, state: State, seed: int | None) -> tuple[Any, dict[str, Any]]:
        if self.view.set_state is None:
            raise ConfigError(f"{self.env}: expected a view with `set_state`, and it has none")
        if seed is not None:
            self.env.reset(seed=seed)
        return self.view.set_state(self.env, state)

    def _check_arguments(self) -> None:
        space, names = self.env.action_space, self.view.action_names
        if not isinstance(space, spaces.Discrete) or space.start != 0:
            raise ConfigError(f"{self.env}: expected discrete actions from 0, got {space}")
        if len(names) != space.n:
            raise ConfigError(f"action_names: expected {space.n} names, got {names}")
        try:
            list(string.Formatter().parse(self.view.template))
        except ValueError as error:
            raise ConfigError(f"template: {error}") from error


def language_env(
    env_id: str = "lactchain/GridWorld-v0", env_kwargs: Mapping[str, Any] | None = None, **kwargs
) -> LanguageEnv:
    """A registered environment in text; `kwargs` are `LanguageEnv`'s.

    If the id is of a `LanguageEnv` itself, its environment and view are used.

    Raises:
        ConfigError: there is no such environment, or it does not take these arguments.
    """
    try:
        env = gym.make(env_id, disable_env_checker=True, **(env_kwargs or {}))
    except gym.error.Error as error:
        raise ConfigError(f"id: no Gymnasium environment {env_id!r}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"kwargs: {env_id} does not take {env_kwargs}: {error}") from error
    if isinstance(env.unwrapped, LanguageEnv):
        return LanguageEnv(env.unwrapped.env, env.unwrapped.view, **kwargs)
    return LanguageEnv(env, **kwargs)


def make_language_env(config: EnvironmentConfig) -> LanguageEnv:
    """The environment of a configuration; see `language_env`."""
    return language_env(
        config.id,
        config.kwargs,
        template=config.template,
        action_names=config.action_names,
        extractor=config.extractor,
        max_chain_length=config.max_chain_length,
        max_chains=config.max_chains,
        invalid_penalty=config.invalid_penalty,
        chain_cost=config.chain_cost,
    )


_NUMBERS = (float, Real)  # the usual type first: asking an abstract class is slow
_FLAGS = (bool, np.bool_)


def _fault(env: gym.Env, rule: str, got: object) -> EnvironmentFault:
    return EnvironmentFault(f"{env} breaks Gymnasium's rule: {rule}; got {str(got)[:200]}")


def _check_reset(result: Any, env: gym.Env) -> None:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise _fault(env, "reset() returns (observation, info dict)", result)
    _check_observation(result[0], env)


def _check_step(result: Any, env: gym.Env) -> None:
    if not isinstance(result, tuple) or len(result) != 5:
        rule = "step() returns (observation, reward, terminated, truncated, info)"
        raise _fault(env, rule, result)
    _, reward, terminated, truncated, info = result
    if not isinstance(reward, _NUMBERS) or not math.isfinite(reward):
        raise _fault(env, "a reward is a finite number", reward)
    if not isinstance(terminated, _FLAGS) or not isinstance(truncated, _FLAGS):
        raise _fault(env, "terminated and truncated are booleans", (terminated, truncated))
    if not isinstance(info, dict):
        raise _fault(env, "info is a dict", info)


def _check_observation(observation: Any, env: gym.Env) -> None:
    if observation not in env.observation_space:
        raise _fault(env, f"an observation is in {env.observation_space}", observation)
