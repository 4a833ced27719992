"""Behaviour to learn from without interaction: scripted, chosen answers, the best of episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lactchain.data.episodes import sampled_states
from lactchain.data.preferences import read_pairs
from lactchain.data.shards import derive_seed
from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import Mixture, OptimalChains, RandomChains
from lactchain.errors import ConfigError, DataError
from lactchain.jobs import BehaviorConfig, TrainBCConfig
from lactchain.types import Action, Trajectory


def cloning_examples(config: TrainBCConfig, env: LanguageEnv) -> list[tuple[str, Action]]:
    """Observations, and the answers to clone."""
    if config.pairs is None:
        return behavior_examples(env, config.behavior, config.run.seed)
    pairs = read_pairs(config.pairs)
    return [(pair.prompt, Action(pair.chosen, pair.chosen_token_ids)) for pair in pairs]


def behavior_examples(
    env: LanguageEnv, config: BehaviorConfig, seed: int
) -> list[tuple[str, Action]]:
    """Observations of start states drawn uniformly, and scripted answers to them.

    Raises:
        ConfigError: nobody knows the shortest paths, or the observations do not tell the states.
    """
    try:
        competent = OptimalChains(env)
    except ValueError as error:
        raise ConfigError(f"environment.{error}") from error
    policy = Mixture(
        competent,
        RandomChains(env.grammar, min(config.max_random_length, env.grammar.max_chain_length)),
        config.competent_fraction,
    )
    states = sampled_states(env, config.num_chains, derive_seed(seed, "behavior"))
    observations = [env.reset(options={"state": state})[0] for state in states]
    seeds = [derive_seed(seed, "behavior", i) for i in range(config.num_chains)]
    return list(zip(observations, policy.act(observations, seeds), strict=True))


def chosen_episodes(
    trajectories: Sequence[Trajectory], only_successes: bool = False, best_fraction: float = 1.0
) -> list[Trajectory]:
    """The episodes that %BC clones, in their order: the successes, and of these the best share.

    Of equal returns the earlier episodes count as better; the share is rounded up.

    Raises:
        DataError: no episode is left.
    """
    kept = [t for t in trajectories if not only_successes or t.infos[-1].get("success")]
    if not kept:
        raise DataError(
            f"trajectories: expected successful episodes, found none among {len(trajectories)}; "
            "set only_successes to false"
        )
    ranking = sorted(range(len(kept)), key=lambda i: -kept[i].episode_return)
    best = sorted(ranking[: math.ceil(best_fraction * len(kept))])
    return [kept[i] for i in best]
