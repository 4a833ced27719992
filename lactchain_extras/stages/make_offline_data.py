"""Makes episodes to learn from offline, which scripted policies play.

Writes RUN/trajectories/*.parquet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lactchain.config.settings import CollectConfig, EnvironmentConfig, RunConfig, check
from lactchain.data.episodes import Episode, Limits, Region, go_round, sampled_episodes
from lactchain.data.evaluations import collection_metrics, movement_metrics, time_metrics
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.scripted import Mixture, OptimalChains, RandomChains
from lactchain.errors import ConfigError
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.run import Run
from lactchain.stages.stage_run import stage
from lactchain.types import Policy, Trajectory

POLICIES: dict[str, Callable[[LanguageEnv], Policy]] = {
    "optimal": OptimalChains,
    "random": lambda env: RandomChains(env.grammar),
}
"""Those of every world by the names that configurations use; `TextView.policies` has the others."""


@dataclass(frozen=True)
class RecordingConfig:
    """Whose behaviour is recorded as offline data, and where in the world."""

    policies: dict[str, float] = field(default_factory=lambda: {"random": 1.0})
    """Scripted policies by name, each with its share of the decisions; the shares add up to 1.
    optimal (shortest paths), random (any chain), legal (moves that no wall stops), consistent (a
    word that fits the feedback)."""
    policy_template: str | None = None
    """What the policies read of a state where the environment shows them less, without history;
    the same decisions are recorded with what the environment shows. null: they read that."""
    regions: list[dict[str, list[int]]] = field(default_factory=list)
    """Parts of the world, each the least and greatest value of some fields of a state: an episode
    starts in one of them, and is cut when it leaves it. None: everywhere."""

    def __post_init__(self) -> None:
        shares = self.policies
        positive = bool(shares) and all(share > 0 for share in shares.values())
        total = sum(shares.values())
        check(positive and abs(total - 1) < 1e-6, "policies", "shares that add up to 1", shares)
        for region in self.regions:
            ranges = all(len(r) == 2 and r[0] <= r[1] for r in region.values())
            check(bool(region) and ranges, "regions", "fields with [least, greatest]", region)


@dataclass(frozen=True)
class MakeOfflineDataConfig:
    """Episodes to learn from without interaction."""

    run: RunConfig = RunConfig(run_dir="runs/make_offline_data")
    environment: EnvironmentConfig = EnvironmentConfig()
    behavior: RecordingConfig = RecordingConfig()
    collect: CollectConfig = CollectConfig()


def main(config: MakeOfflineDataConfig) -> dict[str, Any]:
    """Makes the episodes; returns their figures."""
    with stage("Offline data", config) as run:
        if run.outcome is None:
            run.finish(make_offline_data(config, run))
    return run.outcome


def make_offline_data(config: MakeOfflineDataConfig, run: Run) -> dict[str, Any]:
    """Plays the episodes of scripted policies into RUN/trajectories, and returns their figures.

    The processes share the work out; a killed run keeps its finished files.
    """
    behavior, collect = config.behavior, config.collect
    if behavior.policy_template is None:
        rollouts = Rollouts(config.environment, collect.num_envs)
    else:
        rollouts = Reworded(config.environment, behavior.policy_template, collect.num_envs)
    policy = behavior_policy(rollouts.env, behavior.policies)
    seed, count = config.run.seed, collect.num_episodes
    if behavior.regions:
        episodes = region_episodes(rollouts.env, behavior.regions, count, seed)
    else:
        episodes = sampled_episodes(rollouts.env, count, seed)
    folder = run.path("trajectories")
    played, tally = rollouts.collect(policy, episodes, folder, collect.shard_size, "episodes")
    summary = collection_metrics(played) | movement_metrics(played) | time_metrics(tally)
    run.log_once(summary, step=0)
    return summary


def region_episodes(
    env: LanguageEnv, regions: Sequence[Limits], count: int, seed: int
) -> list[Episode]:
    """Episodes whose starts go round the states of all regions; `ConfigError` if one has none.

    What is held back belongs to none of them.
    """
    places, states = [], env.view_states()
    known = {name for name, value in states[0].items() if isinstance(value, int)}
    for number, limits in enumerate(regions):
        if unknown := set(limits) - known:
            what = f"expected fields of {sorted(known)}, got {sorted(unknown)}"
            raise ConfigError(f"behavior.regions: number {number}: {what}")
        region = Region(limits, env.held_back)
        found = [state for state in states if state in region]
        if not found:
            raise ConfigError(f"behavior.regions: number {number}: no state lies in {limits}")
        places += [(state, region) for state in found]
    return [
        Episode(derive_seed(seed, "episode", i), state, region)
        for i, (state, region) in enumerate(go_round(places, count, seed))
    ]


class Reworded(Rollouts):
    """Rollouts of a policy that reads another template, recorded as the environment tells them."""

    def __init__(self, config: EnvironmentConfig, policy_template: str, num_envs: int) -> None:
        super().__init__(replace(config, template=policy_template, history=1), num_envs)
        self.worded = make_language_env(config)

    def play(
        self, policy: Policy, episodes: Sequence[Episode], folder: Path = Path()
    ) -> list[Trajectory]:
        """Plays the episodes in this process, and tells them again."""
        played = super().play(policy, episodes, folder)
        with self.measure("environment"):
            return [reworded(trajectory, self.worded) for trajectory in played]


def reworded(trajectory: Trajectory, env: LanguageEnv) -> Trajectory:
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
            world = "a world in which the same actions lead to the same states"
            here = f"{action.text!r} led to {info['state']}, and to {expected['state']} before"
            raise ConfigError(f"behavior.policy_template: expected {world}, but {here}")
    return replace(trajectory, observations=tuple(observations))


def behavior_policy(env: LanguageEnv, shares: Mapping[str, float]) -> Policy:
    """Scripted policies, each answering its share of the decisions, by one coin for each.

    Their names are of `POLICIES`, or of `TextView.policies`; others are a `ConfigError`. `env` is
    left reset.
    """
    parts = [(_policy(env, name), share) for name, share in shares.items()]
    policy, below = parts[-1][0], 1.0 - parts[-1][1]
    for part, share in reversed(parts[:-1]):
        # All mixtures toss the same coin for a decision, so the thresholds are cumulative.
        policy, below = Mixture(part, policy, min(below, 1.0)), below - share
    if len(parts) > 1:
        policy.name = ", ".join(f"{share:.3g} {part.name}" for part, share in parts)
    return policy


def _policy(env: LanguageEnv, name: str) -> Policy:
    known = POLICIES | env.view.policies
    if name not in known:
        names = f"names of {sorted(known)}, which play in {env.env.unwrapped}"
        raise ConfigError(f"behavior.policies: expected {names}, got {name!r}")
    try:
        return known[name](env)
    except ValueError as error:
        raise ConfigError(f"behavior.policies: {name}: {error}") from error
