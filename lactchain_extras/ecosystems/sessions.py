"""A session of OpenEnv's protocol: one player, whose messages and replies are JSON."""

import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from lactchain.environments.faults import Before, ours, put_back
from lactchain.environments.language import LanguageEnv
from lactchain.errors import LactChainError
from lactchain_extras.ecosystems.tasks import Splits, begin

RESET_ARGUMENTS = {"seed", "episode_id", "split", "index", "state"}


class Session:
    """One player in an environment of its own.

    ## Messages
    `reset`: `seed`; or a task, by `index` and `split` (the first one where none is given), whose
    own seed counts where no seed is given; or a `state`, as other replies tell it. Without any the
    episode is the next one of this session. `step`: `text`, the completion. `state`: what else is
    known. `close`: ends the session.

    ## Replies
    `observation` has `text`, `truncated` (cut by a time limit, which is no ending) and `success`
    (ended, and ended well); beside it are `reward`, `done` and `metadata`: `LanguageEnv`'s info,
    and `terminated`.

    Args:
        splits: the tasks of the world, as `splits_of` has them.
        before: what `put_back` sets behind each message; None reads it now, which is wrong while
            another thread steps a world.
    """

    def __init__(self, env: LanguageEnv, splits: Splits, before: Before | None = None) -> None:
        self.env, self._splits, self._before = env, splits, before or ours()
        self._episode: dict[str, Any] = {"episode_id": None, "step_count": 0}
        self._state: Any = None
        self._begun = False  # the environment may have played for another session before

    def answer(self, message: str) -> str | None:
        """The reply to one message as the wire has both; None: the session is over."""
        try:
            return self._answer(message)
        finally:
            put_back(self._before)

    def _answer(self, message: str) -> str | None:
        try:
            kind, data = _parsed(message)
        except (ValueError, RecursionError) as error:
            return error_reply("INVALID_JSON", error)
        if kind == "close":
            return None
        replies = {"reset": self.reset, "step": self.step, "state": self.state}
        if not isinstance(kind, str) or kind not in replies:
            problem = f"type: expected one of {sorted(replies)}, got {kind!r}"
            return error_reply("UNKNOWN_TYPE", problem)
        try:
            return _reply("state" if kind == "state" else "observation", replies[kind](data))
        except _Refused as error:
            return error_reply("VALIDATION_ERROR", error)
        except (LactChainError, gym.error.Error) as error:
            return error_reply("EXECUTION_ERROR", error)
        except Exception as error:  # noqa: BLE001  a world raises whatever it likes
            return error_reply("EXECUTION_ERROR", repr(error))

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begins the episode that the data ask for."""
        asked = _reset_arguments(data)
        seed, task = asked.get("seed"), asked.get("index")
        self._begun = False
        if task is None:
            options = {"state": asked["state"]} if "state" in asked else None
            text, info = self.env.reset(seed=seed, options=options)
        else:
            text, info = begin(self.env, self._splits, task, asked.get("split"), seed)
        self._episode = {"episode_id": asked.get("episode_id"), "step_count": 0}
        self._begun = True
        return self._turn(text, None, False, False, info)

    def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Plays a completion."""
        if data.keys() - {"metadata"} != {"text"}:
            raise _Refused(f"action: expected the field text, and no other, got {sorted(data)}")
        if not self._begun:
            raise _Refused("step: expected a reset before it")
        text = data["text"]
        if not isinstance(text, str | list):
            raise _Refused(f"text: expected a text, got {type(text).__name__}")
        # Clients that read a reply as JSON where they can send what they have read of a chain.
        completion = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        self._episode["step_count"] += 1
        return self._turn(*self.env.step(completion))

    def state(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The episode so far, and the state of the world."""
        return {**self._episode, "state": self._state}

    def _turn(
        self, text: str, reward: float | None, terminated: bool, truncated: bool, info: dict
    ) -> dict[str, Any]:
        self._state = info["state"]
        well = {} if info["success"] is None else {"success": info["success"]}
        return {
            "observation": {"text": text, "truncated": truncated} | well,
            "reward": reward,
            "done": terminated or truncated,
            "metadata": info | {"terminated": terminated},
        }


class _Refused(ValueError):
    """A message that is well-formed and asks for what there is not."""


def _parsed(message: str) -> tuple[Any, dict[str, Any]]:
    """The type and the data of a message; `ValueError` unless it is an object with an object."""
    parsed = json.loads(message)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("data", {}), dict):
        raise ValueError("expected an object with type and data")
    return parsed.get("type"), parsed.get("data", {})


def _reset_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are given, and not null; `_Refused` if one of them would be dropped."""
    if unknown := data.keys() - RESET_ARGUMENTS:
        known = sorted(RESET_ARGUMENTS)
        raise _Refused(f"reset: expected arguments out of {known}, got {sorted(unknown)}")
    asked = {name: value for name, value in data.items() if value is not None}
    for name in asked.keys() & {"seed", "index"}:
        number = asked[name]
        if type(number) is not int or number < 0:
            raise _Refused(f"{name}: expected a whole number of at least 0, got {number!r}")
    if "split" in asked and not ("index" in asked and isinstance(asked["split"], str)):
        raise _Refused(f"split: expected a name, beside an index, got {asked['split']!r}")
    if asked.keys() >= {"state", "index"}:
        raise _Refused("state: expected a state or an index, got both")
    return asked


def _reply(kind: str, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def error_reply(code: str, error: object, **more: Any) -> str:
    """What a session answers where it cannot do what a message asks for."""
    return _reply("error", {"message": str(error), "code": code, **more})
