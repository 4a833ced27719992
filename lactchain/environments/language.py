"""Any environment with discrete actions, spoken to in text, a chain of actions at a time.

An environment that speaks and hears text itself needs no view. `TextView` says how another one is
put into words; where it says as well how states are read, set and listed, several completions to
one state can be compared, which is what preference pairs are made of (see `docs/extending.md`).
"""

import dataclasses
import json
import string
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments import faults
from lactchain.environments.extractors import Chain, Rejection, make_extractor
from lactchain.environments.registry import find_env, not_taken
from lactchain.environments.views import HeldBack, State, TextView, shipped_view, with_states
from lactchain.errors import ConfigError, LactChainError
from lactchain.types import ChainGrammar, Policy

INVALID_FEEDBACK = " That was not a legal chain of actions, so nothing was done."
LONGEST_SAMPLE = 4096  # of texts that the spaces sample; they hold longer ones, too
BRIEF, RELATIVE = "brief", "relative"
"""Templates by name: the view's shortest, and the one that says in words where the goal is."""


class LanguageEnv(gym.Env[str, str]):
    """An environment that is spoken to in text, and plays chains of actions.

    ## Description
    One step is one completion: the chain of actions that the extractor finds in it is played until
    it is exhausted or the episode ends. Under the extractor `utterance` a completion is one action.

    ## Action Space
    `Text`: any text. What is not a legal chain is a legal step: the environment is given the text
    where it has a rule for it (`TextView.step_takes_text`); else nothing is executed, the reward is
    `invalid_penalty`, and the observation says so.

    ## Observation Space
    `Text`: the view's template, filled in; the `history` last observations and completions, each on
    lines of its own, if that is not 1.

    ## Starting State
    The environment's own; or `reset(options={"state": state})`, a state as in `info["state"]`.
    With `"remembered": items` beside it the text is these, as in `info["remembered"]`: an episode
    goes on in the middle. Other options are the environment's.

    ## Rewards
    Sum of the rewards of the executed actions, less `chain_cost` for each completion.

    ## Episode End
    As the environment says; truncated as well after `max_chains` completions.

    ## Information
    JSON can hold it. For each executed action: `executed` (its name), `rewards`, `bumped` (it left
    the state as it was and ended nothing), `positions` (where it led); empty on reset. For
    the completion: `invalid_action`, `invalid_reason` (None, or a reason code of the extractor),
    `state` (None if the view cannot read it), `success` (the episode has terminated and ended well;
    None if the view does not say what that is). Only where it applies: `unheard`, True: the text
    was no chain, and neither the world nor `invalid_penalty` has a rule for it; `remembered`: with
    a history, the observations and completions that it holds.

    ## Arguments
    - `env`: an environment with a `Discrete` action space that starts at 0, or with spaces that are
      both `Text`: its actions are the very words of the completion.
    - `view`: how it is put into words; None: the one shipped for it.
    - All others: the fields of `EnvironmentConfig`.

    Raises `ConfigError` if these do not fit together, and `EnvironmentFault` when the environment
    breaks Gymnasium's rules: wrong tuples or types, rewards that are not finite, observations
    outside their space.
    """

    metadata = {"render_modes": []}

    def __init__(self, env: gym.Env, view: TextView | None = None, **settings: Any) -> None:
        view = view or shipped_view(env.unwrapped)
        try:
            config = EnvironmentConfig(**settings)
            names = tuple(config.action_names or view.action_names)
            self.extractor = make_extractor(
                config.extractor, names, config.max_chain_length, view.spelling
            )
        except ValueError as error:
            raise ConfigError(f"environment.{error}") from error
        if config.template == RELATIVE and view.relative is None:
            raise ConfigError(
                f"environment.template: {env.unwrapped} has no template {RELATIVE!r}; take {BRIEF},"
                " null, or a text of your own"
            )
        named = {None: view.template, BRIEF: view.brief or view.template, RELATIVE: view.relative}
        template = named.get(config.template, config.template)
        self.env, functions = with_states(env, view)
        functions = view.apart() | functions
        self._own_template = view.template
        self.view = dataclasses.replace(view, template=template, action_names=names, **functions)
        self.view.check(env)
        self.max_chains = self.view.max_chains if config.max_chains is None else config.max_chains
        self.history, self._held_back = config.history, config.held_back
        self.invalid_penalty, self.chain_cost = config.invalid_penalty, config.chain_cost
        if self.view.reads is not None:
            self._check_reader(self.view.reads)
        text = partial(faults.AnyText, LONGEST_SAMPLE, min_length=0, charset=string.printable)
        self.observation_space, self.action_space = text(), text()
        self._over = True
        self._seed: int | None = None
        self._num_chains = 0
        self._last: tuple[Any, dict[str, Any]] = (None, {})
        self._remembered: deque[str] = deque(maxlen=self.history or None)

    @property
    def grammar(self) -> ChainGrammar:
        """The completions that constrained decoding may produce."""
        return self.extractor.grammar

    def view_states(self) -> list[State]:
        """All states in which an episode is not over; `ConfigError` where the view lists none."""
        if self.view.states is None:
            raise ConfigError(f"{self.env}: expected a view with `states`, `set_state`, got none")
        return self.view.states(self.env)

    def start_states(self) -> list[State]:
        """Those of `view_states` that an episode may begin in."""
        listed = self.view.states is not None and self.view.starts is not None
        return self.view.starts(self.env) if listed else self.view_states()

    @cached_property
    def held_back(self) -> HeldBack:
        """The states that are not to be practised. They can be played like any others.

        By text, the first time leaves the environment at the beginning of an episode. `ConfigError`
        if some are asked for that the view does not tell.
        """
        if self._held_back is None:
            return HeldBack()
        if self.view.states is None or self.view.get_state is None:
            raise ConfigError(
                f"environment.held_back: expected a view with `states` and `get_state`, that of"
                f" {self.env} has not both; add them, or hold nothing back"
            )
        starts, share, by = self.start_states(), self._held_back.share, self._held_back.by
        if by != ["text"] or "text" in starts[0]:
            return HeldBack.choose(starts, share, by)
        chosen = HeldBack.choose([self._as_read(state) for state in starts], share, by)
        return HeldBack.of(s for s in self.view_states() if self._as_read(s) in chosen)

    def _as_read(self, state: State) -> State:
        return {"text": self.texts(state)[0]}

    def texts(self, state: State) -> tuple[str, ...]:
        """Every observation that states this state: plain, after a bump, after a refusal.

        Leaves the environment at the beginning of an episode in that state.
        """
        plain, _ = self.reset(options={"state": state})
        return plain, self._describe(self.view.bump_feedback), self._describe(INVALID_FEEDBACK)

    def text_for(self, policy: Policy) -> str:
        """What a scripted policy reads: the view's own template, or the state, as JSON."""
        if getattr(policy, "reads_states", False):
            return json.dumps(self._state())
        view = dataclasses.replace(self.view, template=self._own_template)
        return view.text(self.env, *self._last)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode, where the environment starts it or in `options["state"]`."""
        super().reset(seed=seed)
        self._seed = seed
        options = dict(options or {})
        state, remembered = options.pop("state", None), options.pop("remembered", None)
        if state is None:
            self._last = faults.reset(self.env, seed, options=options)
        elif self.view.set_state is None:
            raise ConfigError(f"{self.env}: expected a view with `set_state`, and it has none")
        else:
            if seed is not None:
                self.env.reset(seed=seed)
            result = self.view.set_state(self.env, state)
            self._last = faults.checked(result, self.env, seed, None, faults.check_reset)
        self._over, self._num_chains = False, 0
        self._remembered.clear()
        self._remembered.extend(remembered or [self._describe()])
        info = self._info()
        faults.check_reached(info["state"], self._state(), state, self.env)
        return self._recall(info), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays the chain that the completion holds."""
        if self._over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before step()")
        self._num_chains += 1
        # What is no letter of any language shows as a question mark.
        shown = (c if c.isprintable() or c in string.printable else "?" for c in action)
        self._remembered.append("".join(shown))
        reading = None if self.view.reads else self.read(action)
        if reading is None:
            (reward, terminated, truncated, info), feedback = self._play([action]), ""
        elif isinstance(reading, Chain):
            reward, terminated, truncated, info = self._play(self._actions(reading))
            feedback = self.view.bump_feedback if any(info["bumped"]) else ""
        else:
            reward, terminated, truncated, info = self._refuse(action, reading)
            feedback = INVALID_FEEDBACK
        observed = self._describe(feedback)
        over = terminated or truncated
        ending = self.view.ending(self.env) if over and self.view.ending else None
        if ending is not None:
            self._remembered.clear()
            observed, info["shows_state"] = ending, False
        self._remembered.append(observed)
        truncated = not terminated and (truncated or self._num_chains >= self.max_chains)
        self._over = terminated or truncated
        return self._recall(info), reward - self.chain_cost, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _recall(self, info: dict[str, Any]) -> str:
        """The history, each item on lines of its own."""
        if self.history != 1:
            info["remembered"] = list(self._remembered)
        *earlier, latest = self._remembered
        return "\n".join([*(item.removesuffix("\n") for item in earlier), latest])

    def read(self, text: str) -> Chain | Rejection:
        """The chain that a text holds; a text world takes only what is in its action space."""
        reading = self.extractor.parse(text)
        if isinstance(reading, Chain):
            for utterance in reading.utterances:
                if utterance not in self.env.action_space:
                    return Rejection("illegal_action", f"{utterance[:40]!r}")
        return reading

    def _refuse(self, text: str, rejection: Rejection) -> tuple[float, bool, bool, dict[str, Any]]:
        """What happens on text that is no chain: the world's own rule, or nothing."""
        reward, terminated, truncated, info = self.invalid_penalty, False, False, self._info()
        if self.view.step_takes_text:
            reward, terminated, truncated, info = self._play([text])
            if self.view.invalid_wipes_history:
                self._remembered.clear()
        invalid = {"invalid_action": True, "invalid_reason": rejection.reason}
        if not (self.view.step_takes_text or self.invalid_penalty):
            invalid["unheard"] = True
        return float(reward), terminated, truncated, info | _none_played() | invalid

    def _play(self, actions: Sequence[int | str]) -> tuple[float, bool, bool, dict[str, Any]]:
        """Plays actions until they are exhausted or the episode ends."""
        info, terminated, truncated = self._info(), False, False
        for action in actions:
            result = faults.step(self.env, action, self._seed)
            observation, reward, terminated, truncated, env_info = result
            before, state = info["state"], self._state()
            name = action if isinstance(action, str) else self.view.action_names[action]
            info["state"] = state
            info["executed"].append(name)
            info["rewards"].append(float(reward))
            info["bumped"].append(state is not None and state == before and not terminated)
            info["positions"].append(self.view.position(self.env) if self.view.position else [])
            if terminated or truncated:
                break
        faults.checked(observation, self.env, self._seed, action, faults.check_observation)
        self._last = observation, env_info
        if self.view.success is not None:
            info["success"] = bool(terminated and self.view.success(self.env))
        reward = sum(info["rewards"])
        if self.view.reads:
            names = (*_none_played(), "invalid_action", "invalid_reason", "unheard")
            info |= {name: deepcopy(env_info[name]) for name in names if name in env_info}
        return reward, bool(terminated), bool(truncated), info

    def _check_reader(self, reads: ChainGrammar) -> None:
        """Raises `ConfigError` unless a world that reads completions itself is left to do so."""
        if reads != self.grammar:
            raise ConfigError(
                f"environment.extractor: expected completions as {self.env} reads them, got others:"
                f" its grammar is {reads}, and not {self.grammar}"
            )
        if self.invalid_penalty or self.chain_cost:
            raise ConfigError(
                "environment.invalid_penalty: expected 0, and chain_cost 0, in a world that reads"
                " completions and counts both itself; set them where it is served"
            )

    def _actions(self, chain: Chain) -> Sequence[int | str]:
        """What the environment itself is given."""
        if isinstance(self.env.action_space, spaces.Discrete):
            return chain.actions
        return chain.utterances or [self.view.action_names[action] for action in chain.actions]

    def _describe(self, feedback: str = "") -> str:
        return self.view.text(self.env, *self._last, feedback)

    def _info(self) -> dict[str, Any]:
        here = {"state": self._state(), "success": None if self.view.success is None else False}
        return _none_played() | {"invalid_action": False, "invalid_reason": None} | here

    def _state(self) -> State | None:
        return None if self.view.get_state is None else self.view.get_state(self.env)


def _none_played() -> dict[str, list[Any]]:
    return {"executed": [], "rewards": [], "bumped": [], "positions": []}


@faults.undone
def language_env(
    env_id: str = EnvironmentConfig.id, env_kwargs: Mapping[str, Any] | None = None, **kwargs
) -> LanguageEnv:
    """A registered environment in text; of a `LanguageEnv`, the one within it.

    `kwargs` are `LanguageEnv`'s; `ConfigError` where there is none that takes these arguments.
    """
    try:
        env = gym.make(find_env(env_id), disable_env_checker=True, **(env_kwargs or {}))
        view = None if isinstance(env.unwrapped, LanguageEnv) else shipped_view(env.unwrapped)
    except (LactChainError, MemoryError):
        raise
    except Exception as error:
        raise not_taken(env_id, env_kwargs or {}, error) from error
    if view is None:
        return LanguageEnv(env.unwrapped.env, env.unwrapped.view, **kwargs)
    return LanguageEnv(env, view, **kwargs)


def make_language_env(config: EnvironmentConfig) -> LanguageEnv:
    """`language_env` of a configuration."""
    settings = dict(vars(config))
    return language_env(settings.pop("id"), settings.pop("kwargs"), **settings)
