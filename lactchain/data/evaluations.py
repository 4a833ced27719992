"""How episodes went, what states are worth, and what of both an evaluation leaves in a run folder.

A return alone does not tell a policy that is slow from one that is stuck: episodes go into walls,
back and forth, round in circles.

`values.json` holds the critic's value of every state beside the exact one, `episodes.json` how each
start state went. Both are JSON, written whole or not at all (`DiskError`), with a manifest beside
each; what is missing, damaged, of another run or of another schema is not read (`DataError`).
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.errors import ConfigError, DataError
from lactchain.storage.files import read_versioned_json
from lactchain.storage.manifests import verify_if_described, write_with_manifest
from lactchain.types import Trajectory

VERSION = 1
AGAIN = "remove it and the summary.json beside it, and give the same command"
PARTS = {"practised": False, "held_back": True}
"""Start states apart: the name of each part, and whether its states are held back."""

LOOP_REPEATS = 3
"""The same completion to the same state so often within an episode is called a loop."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class StateValues:
    """Values of N states under one policy.

    Attributes:
        states: N states as the environment's view gives them (JSON objects).
        critic: N estimates V(s), in return units.
        exact: N true values V^π(s), or None where they cannot be computed.
        gamma, discount_per: the discount of both, as in `CriticConfig`.
    """

    states: tuple[Mapping[str, Any], ...]
    critic: tuple[float, ...]
    exact: tuple[float, ...] | None
    gamma: float
    discount_per: str = "action"

    def __post_init__(self) -> None:
        for name, values in (("critic", self.critic), ("exact", self.exact)):
            if values is not None and len(values) != len(self.states):
                raise ValueError(
                    f"{name}: expected a value for each of {len(self.states)} states, "
                    f"got {len(values)}"
                )

    @property
    def rmse(self) -> float:
        """Root of the mean squared error of the critic, in return units."""
        return float(np.sqrt(np.mean(np.square(self._errors))))

    @property
    def r2(self) -> float:
        """Share of the variance of the exact values that the critic explains; 1 is perfect.

        NaN where they do not vary.
        """
        variance = np.var(self.exact)
        return float(1 - np.mean(np.square(self._errors)) / variance) if variance else math.nan

    @property
    def rho(self) -> float:
        """Spearman's rank correlation of both; NaN where one of them does not vary."""
        with np.errstate(invalid="ignore"):
            return float(np.corrcoef(ranks(self.critic), ranks(self.exact))[0, 1])

    def where(self, chosen: Sequence[bool]) -> "StateValues":
        """The values of some of the states; N flags say which."""
        columns = {"states": self.states, "critic": self.critic, "exact": self.exact}
        known = {name: values for name, values in columns.items() if values is not None}
        return replace(self, **{n: tuple(compress(values, chosen)) for n, values in known.items()})

    @property
    def _errors(self) -> np.ndarray:
        return np.subtract(self.critic, self.exact)


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode from one start state went.

    Attributes:
        state: the start state (a JSON object).
        success: whether it ended well; None where the world does not say what that is.
        num_chains: completions given.
        num_actions: primitive actions executed, bumps included.
        shortest: fewest primitive actions from there to the goal; None where that is unknown.
        held_back: whether the start state is one that is not practised.
    """

    state: Mapping[str, Any]
    success: bool | None
    num_chains: int
    num_actions: int
    shortest: int | None = None
    held_back: bool = False


def write_values(path: str | Path, values: StateValues) -> None:
    """Writes `values.json`."""
    _write(path, asdict(values))


def read_values(path: str | Path) -> StateValues:
    """Reads what `write_values` wrote."""
    return _read(path, lambda fields: StateValues(**fields))


def write_episodes(path: str | Path, episodes: Sequence[EpisodeResult]) -> None:
    """Writes `episodes.json`."""
    _write(path, {"episodes": [asdict(episode) for episode in episodes]})


def read_episodes(path: str | Path) -> list[EpisodeResult]:
    """Reads what `write_episodes` wrote."""
    return _read(path, lambda fields: [EpisodeResult(**episode) for episode in fields["episodes"]])


def write_pairs_after(path: str | Path, logprobs: Mapping[int, tuple[float, float]]) -> None:
    """Writes `pairs_after.json`: how probable a training has left the completions of some pairs.

    That is, log-probabilities of chosen and rejected, each as a whole, by the place of the pair.
    """
    _write(path, {"pairs": [[place, *both] for place, both in logprobs.items()]})


def read_pairs_after(path: str | Path) -> dict[int, tuple[float, float]]:
    """Reads what `write_pairs_after` wrote."""
    return _read(path, lambda fields: {place: (a, b) for place, a, b in fields["pairs"]})


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks of N values from 1; those that are equal share their mean rank."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (sizes.cumsum() - (sizes - 1) / 2)[group]


def _write(path: str | Path, fields: dict[str, Any]) -> None:
    text = json.dumps({"schema_version": VERSION} | fields, allow_nan=False)
    write_with_manifest(path, text.encode(), {})


def _read(path: str | Path, make: Callable[[dict[str, Any]], Result]) -> Result:
    verify_if_described(path, AGAIN)
    found = read_versioned_json(path, VERSION)
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
    try:
        return make(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not of schema version {VERSION} ({error})") from error


# --- figures of episodes ---


def summarize(
    results: Sequence[EpisodeResult], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """The figures of an evaluation.

    Those of `success_figures` and `movement_metrics`; `mean_chain_length`, executed actions per
    legal completion; `invalid_rate`, of all completions; `episode_return`, undiscounted.
    """
    if not results:
        raise ConfigError("evaluation: expected a start state with a way to the goal, found none")
    return {
        "num_episodes": len(results),
        **success_figures(results),
        "mean_chain_length": _mean_chain_length(trajectories),
        "invalid_rate": _share_invalid(trajectories),
        "episode_return": float(np.mean([t.episode_return for t in trajectories])),
        **movement_metrics(trajectories),
    }


def part_figures(
    env: LanguageEnv, results: Sequence[EpisodeResult], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """The same figures of practised start states and of those held back: `held_back/success_rate`.

    Empty where none is held back.
    """
    played: dict[bool, list[Trajectory]] = {False: [], True: []}
    for trajectory in trajectories:
        played[trajectory.infos[0]["state"] in env.held_back].append(trajectory)
    _warn_if_alike(played[False], played[True])
    return {
        f"{name}/{key}": value
        for name, part in by_part(results).items()
        for key, value in summarize(part, played[PARTS[name]]).items()
    }


def by_part(results: Sequence[EpisodeResult]) -> dict[str, list[EpisodeResult]]:
    """Episodes from practised start states and from those held back; empty where none is."""
    if not any(result.held_back for result in results):
        return {}
    parts = {name: [r for r in results if r.held_back == kind] for name, kind in PARTS.items()}
    return {name: part for name, part in parts.items() if part}


def practised(figures: Mapping[str, Any], name: str) -> Any:
    """A figure of practised start states, as those held back decide nothing; None if not there."""
    return figures.get(f"practised/{name}", figures.get(name))


def success_figures(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """`success_rate`, `success_within_2_chains` and `actions_over_shortest` of N > 0 episodes.

    None of them where the world does not say which endings are good: see `TextView.success`.
    The last is over solved episodes whose shortest path is known; NaN where there are none.
    """
    if any(result.success is None for result in results):
        return {}
    solved = [result for result in results if result.success]
    known = [result for result in solved if result.shortest is not None]
    shortest = sum(result.shortest for result in known) or math.nan
    return {
        "success_rate": len(solved) / len(results),
        "success_within_2_chains": sum(r.num_chains <= 2 for r in solved) / len(results),
        "actions_over_shortest": sum(r.num_actions for r in known) / shortest,
    }


def check_success_known(env: LanguageEnv, names: Iterable[str], key: str) -> None:
    """Raises `ConfigError` if the setting `key` asks for success that the world does not tell."""
    asked = sorted({"success_rate", "success_within_2_chains", "actions_over_shortest"} & {*names})
    if asked and env.view.success is None:
        raise ConfigError(
            f"{key}: expected figures that {env.env} has, got {asked[0]}: its view does not say"
            " which endings are good; give TextView.success, or ask for others"
        )


def time_metrics(tally: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each kind of work over all processes, `time/generate_seconds` and so on.

    And completions per second of one process, with everything: `time/chains_per_second`.
    """
    seconds = {name: value for name, value in tally.items() if name.endswith("_seconds")}
    figures = {f"time/{name}": value for name, value in seconds.items()}
    return figures | {"time/chains_per_second": tally["num_chains"] / sum(seconds.values())}


def collection_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What a collection of episodes looks like: returns, success, chains, invalid completions."""
    ended_well = [t.infos[-1]["success"] for t in trajectories]
    success = {} if None in ended_well else {"rollout/success_rate": float(np.mean(ended_well))}
    return success | {
        "num_episodes": len(trajectories),
        "num_chains": sum(map(len, trajectories)),
        "num_env_steps": sum(sum(t.num_actions) for t in trajectories),
        "rollout/episode_return": float(np.mean([t.episode_return for t in trajectories])),
        "rollout/chain_length": _mean_chain_length(trajectories),
        "rollout/invalid_rate": _share_invalid(trajectories),
    }


def movement_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Shares, each 0 where nothing can be counted.

    `bump_rate`: of the executed actions, those that left the state as it was. `revisit_rate`: of
    all completions, those that led back to a state in which the episode had been before the one it
    was in (standing still is a bump, and no revisit). `loop_rate`: of the episodes, those in which
    the same state got the same completion `LOOP_REPEATS` times.

    A state is `info["state"]`; in worlds that have none, the observation.
    """
    bumps = [bump for t in trajectories for info in t.infos for bump in info.get("bumped", ())]
    ways = [_states(t) for t in trajectories]
    return {
        "bump_rate": _share(bumps),
        "revisit_rate": _share([revisit for states in ways for revisit in _revisits(states)]),
        "loop_rate": _share(list(map(loops, trajectories))),
    }


def endless_rate(trajectories: Sequence[Trajectory], max_chain_length: int) -> float:
    """Share of the episodes that failed though every chain was as long as it may be.

    Without a word on success those that were cut have failed. 0 where chains have a single action.
    """
    failed = []
    for trajectory in trajectories:
        lengths = [len(i["executed"]) for i in trajectory.infos[1:] if not i["invalid_action"]]
        success = trajectory.infos[-1]["success"]
        well = trajectory.terminated if success is None else success
        failed.append(bool(lengths) and min(lengths) == max_chain_length and not well)
    return 0.0 if max_chain_length == 1 else _share(failed)


def _states(trajectory: Trajectory) -> list[str]:
    """What the T + 1 states of an episode are told apart by."""
    return [
        observation if info.get("state") is None else repr(info["state"])
        for observation, info in zip(trajectory.observations, trajectory.infos, strict=True)
    ]


def _revisits(states: Sequence[str]) -> Iterator[bool]:
    """For each completion, whether it led back to an earlier state."""
    earlier: set[str] = set()
    for before, after in pairwise(states):
        earlier.add(before)
        yield after != before and after in earlier


def loops(trajectory: Trajectory) -> bool:
    """Whether the same state got the same completion `LOOP_REPEATS` times."""
    texts = (action.text for action in trajectory.actions)
    repeats = Counter(zip(_states(trajectory), texts, strict=False))
    return max(repeats.values(), default=0) >= LOOP_REPEATS


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _warn_if_alike(practised: Sequence[Trajectory], held_back: Sequence[Trajectory]) -> None:
    """Says so when the texts of states that are held back are practised all the same."""
    known = {trajectory.observations[0] for trajectory in practised}
    if alike := sum(trajectory.observations[0] in known for trajectory in held_back):
        log.warning(
            "%d of %d start states that are held back read like practised ones: name the fields"
            " that the template shows in environment.held_back.by, or hold back by [text]",
            *(alike, len(held_back)),
        )


def _mean_chain_length(trajectories: Sequence[Trajectory]) -> float:
    """Executed actions per legal completion; 0 where there is none."""
    infos = [info for t in trajectories for info in t.infos[1:] if not info["invalid_action"]]
    return float(np.mean([len(info["executed"]) for info in infos])) if infos else 0.0


def _share_invalid(trajectories: Sequence[Trajectory]) -> float:
    return float(np.mean([info["invalid_action"] for t in trajectories for info in t.infos[1:]]))
