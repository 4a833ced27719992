"""Calls of environments, which may raise, break the rules, end the process, or never return.

Whatever comes of it is an `EnvironmentFault` that names the seed and the last action. What is under
way is known to whoever watches.
"""

import os
import time
import traceback
from _signal import SIGINT, SIGTERM, getsignal, signal  # `signal` makes enums: 100 times as slow
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from operator import itemgetter
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

import gymnasium as gym

from lactchain.errors import EnvironmentFault, LactChainError

P, Result = ParamSpec("P"), TypeVar("Result")
Seed = int | str | None
Check = Callable[[Any, gym.Env], None]
MOST_SHOWN = 300
_under_way: dict[int, tuple[float, gym.Env, Seed, Any]] = {}
"""What each thread waits for."""


def _folder() -> str | None:
    with suppress(OSError):  # it may be gone
        return os.getcwd()
    return None


def _set_world_size(told: str | None) -> None:
    os.environ.pop("WORLD_SIZE", None) if told is None else os.environ.update(WORLD_SIZE=told)


OURS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    f"handler of {n}": (partial(getsignal, n), partial(signal, n)) for n in (SIGINT, SIGTERM)
} | {
    "number of processes": (partial(os.environ.get, "WORLD_SIZE"), _set_world_size),
    "working directory": (_folder, os.chdir),
}
"""What a world may not change of its process: how it is read, and how it is set."""


def undone(call: Callable[P, Result]) -> Callable[P, Result]:
    """What a world changes of its process in a call that makes, resets or plays it is put back."""

    @wraps(call)
    def and_back(*args: P.args, **kwargs: P.kwargs) -> Result:
        before = [(read(), read, put_back) for read, put_back in OURS.values()]
        try:
            return call(*args, **kwargs)
        finally:
            for value, read, put_back in before:
                if read() != value:
                    with suppress(ValueError):  # only the main thread may set handlers
                        put_back(value)

    return and_back


def step(env: gym.Env, action: Any, seed: Seed, check: Check) -> Any:
    """What `env.step(action)` returns, once checked; until then `overdue` tells of it.

    Args:
        seed: of the episode, in words or a number, where it is known.

    Raises:
        EnvironmentFault: it raises, ends the process, or does not pass the check.
    """
    return checked(called(env.step, env, seed, action, action), env, seed, action, check)


@undone
def reset(env: gym.Env, seed: int | None, check: Check, **arguments: Any) -> Any:
    """The same of `env.reset`, with its other arguments."""
    result = called(env.reset, env, seed, None, seed=seed, **arguments)
    return checked(result, env, seed, None, check)


def checked(result: Any, env: gym.Env, seed: Seed, action: Any, check: Check) -> Any:
    """What an environment has returned; a fault that the check finds tells when that was."""
    try:
        check(result, env)
    except EnvironmentFault as fault:
        raise EnvironmentFault(f"{fault} ({_told(seed, action)})") from None
    return result


def overdue(seconds: float) -> str | None:
    """The call that has taken longer than this, in words; None where there is none."""
    calls = sorted(_under_way.copy().values(), key=itemgetter(0))
    if not calls or time.monotonic() - calls[0][0] < seconds:
        return None
    _, env, seed, action = calls[0]
    return f"{env}: a step has not returned within {seconds:.0f} s ({_told(seed, action)})"


def called(
    call: Callable[..., Any], env: gym.Env, seed: Seed, action: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """What a call of an environment returns; of LactChain's errors, they themselves are raised."""
    thread = get_ident()
    around = _under_way.get(thread)
    _under_way[thread] = time.monotonic(), env, seed, action
    try:
        return call(*args, **kwargs)
    except (LactChainError, KeyboardInterrupt):
        raise
    except SystemExit as end:
        raise EnvironmentFault(
            f"{env} called sys.exit({end.code!r}) in the middle of the work; let it raise an error,"
            f" or end the episode ({_told(seed, action)})"
        ) from end
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SHOWN]
        where = f"{place.filename}:{place.lineno}"
        told = _told(seed, action)
        raise EnvironmentFault(f"{env} raised {said}, at {where} ({told})") from error
    finally:
        if around is None:
            del _under_way[thread]
        else:  # what is around it goes on, and has its time anew
            _under_way[thread] = time.monotonic(), *around[1:]


def _told(seed: Seed, action: Any) -> str:
    shown = " ".join(repr(action).split())[:MOST_SHOWN]
    return f"seed {seed}, last action {shown}"
