"""Panels: numbered tasks of a world in a file that others can cite, and results on them.

A panel fixes what an episode is: the world and its arguments, where and under which dice each task
begins, how many completions there are, and a hash of the rules, by play. How a state is worded is
the player's choice. A result holds what was answered in every task, so that anybody can play it
again without the player.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from lactchain.config.parsing import parse
from lactchain.config.settings import EnvironmentConfig
from lactchain.config.yaml_files import CONFIGS
from lactchain.data.episodes import all_episodes
from lactchain.data.rollouts import Rollouts
from lactchain.data.sources import read_trajectories
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain.environments.views import State, tabular_model
from lactchain.errors import ConfigError, DataError, EnvironmentFault
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.run import Run
from lactchain.stages.world_facts import check_model
from lactchain.storage.files import SEAL, read_sealed, seal, write_sealed
from lactchain.types import Action, Policy, Trajectory
from lactchain_extras.ecosystems.tasks import bounds
from lactchain_extras.explorer.tables import key

VERSION = 1
PACKAGES = ("gymnasium", "numpy", "minigrid")
WORLD = (
    "id", "kwargs", "extractor", "max_chain_length", "max_chains", "history", "invalid_penalty",
    "chain_cost",
)  # fmt: skip
"""The settings of an environment that say what an episode is."""
PLAYER = ("model", "adapter", "decoding", "temperature")
AGAIN = "take it from where it was published"
DIGITS = 6
"""Of floors and optima: sums differ from machine to machine behind them."""

Panel = dict[str, Any]


def make_panel(config: EnvironmentConfig, count: int, seed: int) -> Panel:
    """A panel of so many tasks, drawn by rank of a hash; some begin alike where there are too few.

    - `world`: settings of the environment; `packages`: versions of what it needs.
    - `rules`: hash of what random play meets in each task, by the world's own words.
    - `tasks`: their states, and whether each is held back from practice.
    - `floors`: success and return of scripted policies in these tasks; `optimum`: the greatest
      expectation of both, where there is an exact model.
    """
    env = make_language_env(config)
    if not _is_json(env.start_states()):
        raise ConfigError(
            f"environment: expected states of {config.id} that come back from JSON as they were "
            "(texts as names, lists and no tuples), for a file to hold; got "
            f"{env.start_states()[0]}"
        )
    ordered = sorted(env.start_states(), key=lambda state: derive_seed(seed, "panel", key(state)))
    states = [ordered[number % len(ordered)] for number in range(count)]
    rollouts = Rollouts(config, num_envs=min(count, 64))
    played = {p.name: _play(rollouts, p, states, seed) for p in _scripted(env)}
    if env.view.model is not None:
        check_model(tabular_model(env.env, env.view), env, played["random"])
    return {
        "schema_version": VERSION,
        "world": {name: getattr(config, name) for name in WORLD},
        "packages": _versions(),
        "rules": rules_of(config, states, seed),
        "seed": seed,
        "tasks": [{"state": state, "held_back": state in env.held_back} for state in states],
        "floors": _rounded({name: _figures(episodes) for name, episodes in played.items()}),
        "optimum": _rounded(bounds(env, states)["optimum"]),
    }


def rules_of(config: EnvironmentConfig, states: Sequence[State], seed: int) -> str:
    """A hash of states, rewards, endings and words of random play from some states."""
    own = EnvironmentConfig(config.id, config.kwargs, max_chain_length=3, max_chains=12)
    rollouts = Rollouts(own, num_envs=1)
    played = _play(rollouts, RandomChains(rollouts.env.grammar), states, seed)
    digest = hashlib.sha256()
    for episode in played:
        met = [[info["state"], info["rewards"], info["success"]] for info in episode.infos]
        record = [episode.observations, met, episode.terminated]
        digest.update(json.dumps(record, sort_keys=True).encode())
    return digest.hexdigest()


def read_panel(path: str | Path) -> Panel:
    """A panel as it was made; a word stands for one that is shipped.

    Raises:
        DataError: it was changed, is damaged, or of another version.
    """
    shipped = CONFIGS / "panel" / f"{path}.json"
    path = shipped if re.fullmatch(r"\w+", str(path)) and shipped.is_file() else path
    match panel := _read(path, {"world", "rules", "seed", "tasks"}):
        case {"world": dict(world), "rules": str(), "seed": int(), "tasks": [_, *_] as tasks}:
            are_tasks = all(isinstance(t, dict) and isinstance(t.get("state"), dict) for t in tasks)
            if world.keys() == {*WORLD} and are_tasks:
                return panel
    raise DataError(f"{path}: expected a world, rules, a seed, and a state in each task; {AGAIN}")


def _read(path: str | Path, names: set[str]) -> dict[str, Any]:
    record = read_sealed(path, AGAIN)
    version = record.get("schema_version")
    if type(version) is not int or version != VERSION or not names <= record.keys():
        raise DataError(f"{path}: expected {sorted(names)} of version {VERSION}, got"
                        f" {sorted(record)} of version {version}; {AGAIN}")  # fmt: skip
    return record


def starts(path: str | Path, config: EnvironmentConfig) -> tuple[list[State], int]:
    """Where the tasks of a panel begin, and the seed of their dice, for an actor's evaluation.

    Raises:
        ConfigError: the environment is another one, or has other rules here.
        DataError: see `read_panel`.
    """
    panel = read_panel(path)
    if others := {n: fixed for n, fixed in panel["world"].items() if getattr(config, n) != fixed}:
        options = (f"--environment.{n} {quote(_as_text(fixed))}" for n, fixed in others.items())
        raise ConfigError(f"environment: the panel {path} has another one; add {' '.join(options)}")
    states = [task["state"] for task in panel["tasks"]]
    try:
        rules = rules_of(config, states, panel["seed"])
    except EnvironmentFault as error:
        raise DataError(f"{path}: its tasks cannot be played here: {error}") from error
    if rules != panel["rules"]:
        theirs, ours = panel["rules"][:12], rules[:12]
        made = f"made for other rules of {config.id} ({theirs}, here {ours})"
        raise ConfigError(f"{path}: {made}; with {panel.get('packages')}, here {_versions()}")
    return states, panel["seed"]


def write_result(run: Run, path: str, config: Any) -> None:
    """Writes RUN/panel_result.json: what was answered in each task, and what came of it."""
    panel, played = read_panel(path), read_trajectories(run.path("trajectories"))
    player = {name: getattr(config.actor, name) for name in PLAYER}
    result = {
        "schema_version": VERSION,
        "panel": seal(panel)[SEAL],
        "player": player | {"template": config.environment.template},
        "answers": [[action.text for action in episode.actions] for episode in played],
        "figures": _rounded(_figures(played)),
    }
    write_sealed(run.path("panel_result.json"), result)


def verify(path: str | Path, result: str | Path) -> dict[str, Any]:
    """Plays a result's answers once more in the tasks of its panel; returns its figures.

    Raises:
        DataError: it is of another panel, was changed, or does not come to these figures.
        ConfigError: the world has other rules here, or what are no settings.
    """
    panel = read_panel(path)
    stored = _read(result, {"panel", "answers", "figures"})
    if stored["panel"] != seal(panel)[SEAL]:
        raise DataError(f"{result}: of another panel than {path}; name the one that it was made on")
    words = [word for n, fixed in panel["world"].items() for word in (f"--{n}", _as_text(fixed))]
    config = parse(EnvironmentConfig, words)
    states, seed = starts(path, config)
    answers = stored["answers"]
    are_lists = isinstance(answers, list) and all(isinstance(texts, list) for texts in answers)
    if not are_lists or not all(isinstance(text, str) for texts in answers for text in texts):
        raise DataError(f"{result}: expected a list of texts for each task; {AGAIN}")
    if len(answers) != len(states):
        raise DataError(f"{result}: expected answers to {len(states)} tasks, got {len(answers)}")
    rollouts = Rollouts(config, num_envs=len(states))
    played = _play(rollouts, _Recorded(answers), states, seed)
    if [len(episode) for episode in played] != [len(texts) for texts in answers]:
        raise DataError(f"{result}: answers: expected none behind the end of a task")
    found = _rounded(_figures(played))
    if found != stored["figures"]:
        raise DataError(f"{result}: says {stored['figures']}, and its answers come to {found}")
    return found


class _Recorded:
    """Says what was said; all episodes are asked at once, and those that go on in their order."""

    name = "recorded"

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self._answers, self._turn = answers, 0

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        going_on = [texts for texts in self._answers if len(texts) > self._turn]
        if len(going_on) != len(observations):
            raise DataError("answers: expected one for each completion that a task asks for")
        self._turn += 1
        return [Action(texts[self._turn - 1]) for texts in going_on]


def _play(
    rollouts: Rollouts, policy: Policy, states: Sequence[State], seed: int
) -> list[Trajectory]:
    return rollouts.play(policy, all_episodes(rollouts.env, seed, starts=states))


def _scripted(env: LanguageEnv) -> list[Policy]:
    policies: list[Policy] = [RandomChains(env.grammar)]
    if env.view.competent is not None:
        policies.append(env.view.policies[env.view.competent](env))
    elif env.view.model is not None and env.history == 1:
        policies.append(OptimalChains(env))
    return policies


def _figures(played: Sequence[Trajectory]) -> dict[str, float]:
    known = [e.infos[-1]["success"] for e in played if e.infos[-1]["success"] is not None]
    success = {"success_rate": float(np.mean(known))} if known else {}
    return success | {
        "episode_return": float(np.mean([e.episode_return for e in played])),
        "chains": float(np.mean([len(e) for e in played])),
    }


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES if find_spec(name) is not None}


def _as_text(setting: Any) -> str:
    """As the command line takes it."""
    return setting if isinstance(setting, str) else json.dumps(setting)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
