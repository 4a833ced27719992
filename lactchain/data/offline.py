"""Behaviour to learn from without interaction: scripted, or the chosen answers of pairs."""

from __future__ import annotations

from lactchain.data.preferences import read_pairs
from lactchain.data.rollouts import sampled_states
from lactchain.data.shards import derive_seed
from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import Mixture, OptimalChains, RandomChains
from lactchain.errors import ConfigError
from lactchain.jobs import BehaviorConfig, TrainBCConfig
from lactchain.types import Action


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
