"""Offline data: episodes of scripted policies, or of somebody else, as trajectory files."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import gymnasium as gym

from lactchain.data.dataset_files import read_dataset, write_dataset
from lactchain.data.episodes import Episode, region_episodes, sampled_episodes
from lactchain.data.minari_files import METADATA, read_minari, write_minari
from lactchain.data.rollouts import Rollouts
from lactchain.data.shards import work_through
from lactchain.data.trajectories import read_trajectories, write_trajectories
from lactchain.environments.language import LanguageEnv, language_arguments, make_language_env
from lactchain.environments.scripted import POLICIES, Mixture
from lactchain.errors import ConfigError
from lactchain.jobs import MakeOfflineDataConfig
from lactchain.run import Run
from lactchain.types import Policy, Trajectory


def behavior_policy(env: LanguageEnv, shares: Mapping[str, float]) -> Policy:
    """Scripted policies, each answering its share of the decisions, by one coin for each.

    Args:
        env: what the policies read; it is left reset.
        shares: names of policies, those of every world (`scripted.POLICIES`) or of this one
            (`TextView.policies`), with probabilities.

    Raises:
        ConfigError: no such policy plays in this world.
    """
    parts = [(_policy(env, name), share) for name, share in shares.items()]
    policy, below = parts[-1][0], 1.0 - parts[-1][1]
    for part, share in reversed(parts[:-1]):
        # All mixtures toss the same coin for a decision, so the thresholds are cumulative.
        policy, below = Mixture(part, policy, min(below, 1.0)), below - share
    if len(parts) > 1:
        policy.name = ", ".join(f"{share:.3g} {part.name}" for part, share in parts)
    return policy


def record(config: MakeOfflineDataConfig, run: Run) -> tuple[list[Trajectory], Counter[str]]:
    """Plays the episodes of a configuration into RUN/trajectories, and returns them all.

    The processes share the work out; a killed run keeps its finished files.

    Returns:
        The episodes, and the tally of all processes.
    """
    behavior, collect = config.behavior, config.collect
    seen, told = config.environment, None
    if behavior.policy_template is not None:
        told = make_language_env(config.environment)
        seen = replace(config.environment, template=behavior.policy_template, history=1)
    rollouts = Rollouts(seen, collect.num_envs)
    policy = behavior_policy(rollouts.env, behavior.policies)
    episodes = _episodes(config, rollouts.env)

    def make(shard: int) -> tuple[list[Trajectory], Counter[str]]:
        before = rollouts.tally.copy()
        part = episodes[shard * collect.shard_size : (shard + 1) * collect.shard_size]
        played = rollouts.play(policy, part, run.directory)
        if told is not None:
            with rollouts.measure("environment"):
                played = [retell(trajectory, told) for trajectory in played]
        return played, rollouts.tally - before

    num_shards, folder = -(-len(episodes) // collect.shard_size), run.path("trajectories")
    return work_through(folder, num_shards, make, write_trajectories, read_trajectories, "episodes")


def retell(trajectory: Trajectory, env: LanguageEnv) -> Trajectory:
    """The same episode in the words of another view of the world.

    Raises:
        ConfigError: the world does not do the same again.
    """
    start = trajectory.infos[0]["state"]
    observation, _ = env.reset(seed=trajectory.seed, options={"state": start})
    observations = [observation]
    for action, expected in zip(trajectory.actions, trajectory.infos[1:], strict=True):
        observation, *_, info = env.step(action.text)
        observations.append(observation)
        if info["state"] != expected["state"]:
            raise ConfigError(
                "behavior.policy_template: expected a world in which the same actions lead to the "
                f"same states, but {action.text!r} led to {info['state']}, and to "
                f"{expected['state']} before"
            )
    return replace(trajectory, observations=tuple(observations))


def import_episodes(source: str | Path) -> list[Trajectory]:
    """Episodes of a Minari data set, or else of a Hugging Face data set.

    Raises:
        DataError: it is neither, damaged, or no data set of text.
    """
    is_minari = (Path(source) / "data" / METADATA).is_file()
    return read_minari(source) if is_minari else read_dataset(source)


def export_episodes(
    trajectories: Sequence[Trajectory], config: MakeOfflineDataConfig, run: Run
) -> None:
    """Writes the formats that a configuration asks for, to RUN/minari and RUN/dataset."""
    about = f"Made by `make_offline_data.py` with the policies {config.behavior.policies}."
    if config.source is not None:
        about = f"Imported from `{Path(config.source).name}`."
    if "minari" in config.export:
        spec = copy.deepcopy(gym.spec("lactchain/Language-v0"))
        spec.kwargs = language_arguments(config.environment)
        write_minari(
            run.path("minari"), config.dataset_id, trajectories, env_spec=spec, description=about
        )
    if "datasets" in config.export:
        title = config.dataset_id
        write_dataset(run.path("dataset"), trajectories, title=title, description=about)


def _policy(env: LanguageEnv, name: str) -> Policy:
    known = POLICIES | env.view.policies
    if name not in known:
        raise ConfigError(
            f"behavior.policies: expected names of {sorted(known)}, which play in"
            f" {env.env.unwrapped}, got {name!r}"
        )
    try:
        return known[name](env)
    except ValueError as error:
        raise ConfigError(f"behavior.policies: {name}: {error}") from error


def _episodes(config: MakeOfflineDataConfig, env: LanguageEnv) -> list[Episode]:
    seed, regions = config.run.seed, config.behavior.regions
    if regions:
        return region_episodes(env, regions, config.collect.num_episodes, seed)
    return sampled_episodes(env, config.collect, seed)
