"""A world behind an OpenEnv URL, as a Gymnasium environment that speaks and hears text.

A server of ours (`lactchain serve`) says in its manifest what it reads, so that `LanguageEnv` is
equal to the one within it: infos, states, tasks and grammar. Of other servers there is what OpenEnv
has, text, reward and done; what they lack is repaired where it can be, and said once where not.
"""

import ipaddress
import json
import os
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import gymnasium as gym
import httpx2
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from lactchain.environments.views import State, TextView, reset_into
from lactchain.errors import ConfigError, EnvironmentFault, LactChainError
from lactchain.types import ChainGrammar
from lactchain_extras.ecosystems.free_text import HEARD, SAID, say_once, shown, spoken_view
from lactchain_extras.serving.transport import RefusedError, Unfinished, text_of

HIDDEN = {"metadata", "system_prompt", "truncated", "success", "done", "reward"}
"""Fields of observations that are not for whoever plays."""
HOSTS = "LACTCHAIN_HOSTS"
"""The environment variable that lets worlds be on other machines; no file can set it."""
PAGE_SECONDS = 10.0
MOST_BYTES = 1 << 24
"""Of a reply in a session."""
MOST_REWARD = 3.4e38
"""What float32 holds."""
NO_ANSWERS = (httpx2.RequestError, httpx2.InvalidURL, ValueError, RecursionError)


class OpenEnvWorld(gym.Env[str, str]):
    """The environment behind an OpenEnv URL.

    ## Description
    One object is one session. It begins with the first `reset`, over a web socket.

    ## Arguments
    - `name`: the URL, `http://host:port` or `https://...`, of this machine or of a host that
      `LACTCHAIN_HOSTS` names (with commas between): settings may be of anybody.
    - `field`: the field of an action that takes the text; None: the one that is required.
    - `show`: the field of an observation to show; None: the only text in it, or all as JSON.
    - `reset_arguments`: sent with every reset, beside the seed.
    - `success_reward`: an episode that ended with at least this reward ended well, where the server
      has no field `success`.
    - `timeout`: seconds to wait for a reply.

    Raises `ConfigError` if no such server answers at the URL, and `EnvironmentFault` when it says
    that something went wrong, or says nothing. A session that was lost, or did not reply in time,
    is over; the next `reset` begins another.
    """

    metadata = {"render_modes": []}
    observation_space, action_space = SAID, HEARD

    def __init__(
        self,
        name: str,
        field: str | None = None,
        show: str | None = None,
        reset_arguments: Mapping[str, Any] | None = None,
        success_reward: float = 1.0,
        timeout: float = 60.0,
    ) -> None:
        self.url = _checked(name.rstrip("/"))
        manifest = _get(f"{self.url}/manifest", optional=True)  # which servers of ours have
        self.manifest = manifest if isinstance(manifest, dict) and "grammar" in manifest else None
        self.field = field or self._text_field()
        self.show = show
        self.reset_arguments = dict(reset_arguments or {})
        self.success_reward, self.timeout = success_reward, timeout
        self.state: State | None = None
        self.success = False
        self._opened, self._socket = ExitStack(), None
        weakref.finalize(self, self._opened.close)  # who forgets it leaves no session behind

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begins an episode by the seed; `options` are sent as arguments of the reset."""
        super().reset(seed=seed)
        asked = self.reset_arguments | (options or {})
        if seed is not None:
            asked["seed"] = seed
        if self._socket is None:
            self._connect()
        try:
            data = self._ask("reset", asked)
        except _Lost:
            self._connect()  # nothing is lost between two episodes
            data = self._ask("reset", asked)
        text, _, _, _, info = self._read(data)
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sends a text."""
        return self._read(self._ask("step", {self.field: action}))

    def close(self) -> None:
        """Ends the session."""
        if self._socket is not None:
            with suppress(WebSocketException, OSError):
                self._socket.send('{"type": "close"}')
            self._opened.close()
            self._socket = None

    def text_view(self) -> TextView:
        """What the server says of its world; of another server's, that it speaks text."""
        if self.manifest is None:
            return replace(spoken_view(), waits=True)
        try:
            grammar = dict(self.manifest["grammar"])
            names = grammar["action_names"]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise TypeError(f"action_names: expected a list of texts, got {names!r:.60}")
            grammar["action_names"] = tuple(names)
            return replace(
                spoken_view(),
                action_names=grammar["action_names"],
                template="{observation}",
                get_state=attrgetter("unwrapped.state"),
                set_state=reset_into,
                reads=ChainGrammar(**grammar),
                waits=True,
                max_chains=self.manifest["max_chains"],
                **({"states": _states} if self.manifest["tasks"] else {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            what = "the manifest that `lactchain serve` gives, got one with a fault"
            fault = f"expected {what}: {error!r:.200}"
            raise ConfigError(f"environment.id: openenv:{self.url}: {fault}") from error

    @cached_property
    def tasks(self) -> list[State]:
        """The start states of a server of ours, in the order of their numbers.

        Raises `ConfigError` if it does not tell them.
        """
        try:
            splits = _get(f"{self.url}/tasks").values()
            return [dict(state) for states in splits for state in states]
        except (AttributeError, TypeError, ValueError) as error:
            key = f"environment.id: openenv:{self.url}"
            raise ConfigError(f"{key}: expected its tasks, got {error!r:.200}") from error

    def _text_field(self) -> str:
        """The one field that the server's actions must have, a text."""
        schema = required = _get(f"{self.url}/schema", optional=True) or {}
        with suppress(AttributeError, LookupError, TypeError, ValueError):  # any JSON may come
            action = schema.get("action", {})
            properties = action.get("properties", {})
            required = [name for name in action.get("required", properties) if name != "metadata"]
            (name,) = required
            if properties[name]["type"] == "string":
                return name
        got = f"expected actions with one required text, got fields {str(required)[:200]}"
        mend = "name the one that takes the text as environment.kwargs.field"
        raise ConfigError(f"environment.id: openenv:{self.url}: {got}; {mend}")

    def _connect(self) -> None:
        self.close()
        options = {"max_size": MOST_BYTES, "open_timeout": self.timeout, "close_timeout": 1}
        address = f"ws{self.url.removeprefix('http')}/ws"
        try:
            session = connect(address, compression=None, **options)
            self._socket = self._opened.enter_context(session)
        except (WebSocketException, OSError, ValueError) as error:
            raise EnvironmentFault(f"{self.url}: expected a session, got {error!r}") from error
        if self.manifest is None and self.url not in _seeds_checked:
            _seeds_checked.add(self.url)
            asked = self.reset_arguments | {"seed": 0}
            first, second = (self._ask("reset", asked)["observation"] for _ in range(2))
            if first != second:
                fault = "does not keep to seeds, so players of one seed begin in different states"
                say_once(f"{self.url}: {fault}")

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the reply to a message; when none comes, the session is over."""
        if self._socket is None:
            fault = f"expected a reset before {kind}, no session is open"
            raise EnvironmentFault(f"{self.url}: {fault}")
        try:
            with suppress(ConnectionClosed):  # what it said before it hung up can still be read
                self._socket.send(json.dumps({"type": kind, "data": data}))
            reply = json.loads(self._socket.recv(timeout=self.timeout))
        except (WebSocketException, OSError, ValueError) as error:
            self.close()  # a reply that comes late would be taken for the next one
            raise _Lost(f"{self.url}: expected a reply to {kind}, got {error!r}") from error
        match reply:
            case {"type": "error", "data": dict(content)}:
                cause = " ".join(f"{content.get('code')}: {content.get('message')}".split())
                raise EnvironmentFault(f"{self.url}: {cause[:500]}")
            case {"type": str(kind), "data": dict(content)} if kind != "pong":
                return content
        raise self._odd(reply)

    def _odd(self, reply: Any) -> EnvironmentFault:
        """The error for a reply that is none of OpenEnv's."""
        got = " ".join(repr(reply).split())[:200]
        what = "an observation of fields, a reward that is a number, and done, true or false"
        return EnvironmentFault(f"{self.url}: expected {what}, got {got}; ask who runs the server")

    def _read(self, data: Mapping[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What `step` returns, out of the data of a reply."""
        seen, reward, done = data.get("observation"), data.get("reward") or 0.0, data.get("done")
        info = data.get("metadata") or {}
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
        whole = isinstance(seen, dict) and isinstance(info, dict) and is_number
        ends = [seen.get("truncated"), seen.get("success"), info.get("terminated")] if whole else []
        flags = [done, *(flag for flag in ends if flag is not None)]
        if not whole or abs(reward) > MOST_REWARD or not all(isinstance(f, bool) for f in flags):
            raise self._odd(data)
        reward, info = float(reward), dict(info)
        if done and "truncated" not in seen:
            lacks = "has no field truncated, so what a time limit cuts counts as ended"
            say_once(f"{self.url}: {lacks}")
        truncated = done and bool(seen.get("truncated", False))
        terminated = info.get("terminated", done and not truncated)
        well = seen.get("success", reward >= self.success_reward)
        self.state, self.success = info.get("state"), bool(terminated and well)
        return shown(self._text(seen), self.url), reward, terminated, truncated, info

    def _text(self, seen: Mapping[str, Any]) -> str:
        if self.show is not None:
            if self.show not in seen:
                raise self._odd(seen)
            return str(seen[self.show])
        fields = {name: value for name, value in seen.items() if name not in HIDDEN}
        texts = [value for value in fields.values() if isinstance(value, str) and value]
        return texts[0] if len(texts) == 1 else json.dumps(fields, ensure_ascii=False)


class _Lost(EnvironmentFault):
    """The connection broke, or no reply came in time."""


def _checked(url: str) -> str:
    """The address of a world; `ConfigError` unless it is of this machine, or of a host allowed."""
    key = f"environment.id: openenv:{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{key}: expected http(s)://host:port, {error}") from error
    plain = not {"?", "#", "@"} & set(url)
    if parts.scheme not in ("http", "https") or not host or port == 0 or not plain:
        raise ConfigError(f"{key}: expected http(s)://host:port")
    is_here = host == "localhost"
    with suppress(ValueError):  # it is no number
        is_here = ipaddress.ip_address(host).is_loopback
    if not is_here and host not in os.environ.get(HOSTS, "").split(","):
        why = "settings may be of anybody, so another is asked only where the environment says"
        raise ConfigError(f"{key}: expected a world on this machine; {why} {HOSTS}={host}")
    return url


def _get(url: str, optional: bool = False) -> Any:
    """What a page of the server holds; None where an optional one is not there."""
    try:
        with httpx2.Client(timeout=PAGE_SECONDS) as client:
            return json.loads(text_of(client, url))
    except (LactChainError, Unfinished, *NO_ANSWERS) as error:
        if optional and isinstance(error, RefusedError) and error.status == 404:
            return None
        got = f"expected an OpenEnv server, got {error!r:.300}"
        raise ConfigError(f"environment.id: openenv:{url}: {got}") from error


_seeds_checked: set[str] = set()


def _states(env: gym.Env) -> list[State]:
    return list(env.unwrapped.tasks)
