"""From an actor and a critic to the pairs that SimPO learns from."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import sampled_states
from lactchain.data.preferences import (
    DROP_REASONS,
    Candidates,
    make_pairs,
    read_pairs,
    require_pairs,
    write_pairs,
)
from lactchain.data.rollouts import Rollouts, time_metrics
from lactchain.data.shards import derive_seed, work_through
from lactchain.environments.extractors import Rejection
from lactchain.environments.language import LanguageEnv
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.run import Run
from lactchain.settings import ActorConfig, EnvironmentConfig, PreferenceConfig
from lactchain.types import PreferencePair

COLLAPSED_INVALID_RATE = 0.3
COLLAPSED_CHAIN_LENGTH = 1.2
log = logging.getLogger(__name__)


def make_preferences(
    environment: EnvironmentConfig,
    actor_config: ActorConfig,
    critic_folder: str | None,
    config: PreferenceConfig,
    seed: int,
    run: Run,
) -> tuple[list[PreferencePair], dict[str, Any]]:
    """Pairs from the actor's own answers, kept in the run's folder, and their figures.

    The processes share the work out; a killed run keeps its finished shards, counts included.

    Raises:
        DataError: every pair was dropped.
    """
    rollouts = Rollouts(environment)
    env = rollouts.env
    actor = LanguageActor.from_config(actor_config, env.grammar)
    critic = None if critic_folder is None else EmbeddingCritic.load(critic_folder)
    rank = "return" if critic is None else config.rank_by
    ranked_by = "return" if rank == "return" else f"critic {critic_folder}"
    log.info("pairs are ranked by %s", ranked_by)
    per_shard = config.states_per_shard
    states = sampled_states(env, config.num_states, derive_seed(seed, "pairs"))

    def make(shard: int) -> tuple[list[PreferencePair], Counter[str]]:
        before = rollouts.tally.copy()
        candidates = sample_candidates(
            actor,
            rollouts,
            states[shard * per_shard : (shard + 1) * per_shard],
            config.num_candidates,
            derive_seed(seed, "candidates", shard),
            critic,
            config.gamma if critic is None else critic.settings.gamma,
            config.discount_per if critic is None else critic.settings.discount_per,
        )
        pairs, dropped = make_pairs(candidates, rank=rank, min_margin=config.min_margin)
        tally = rollouts.tally - before + _answer_counts(candidates, env)
        return pairs, tally + Counter({f"dropped_{reason}": n for reason, n in dropped.items()})

    num_shards = -(-len(states) // per_shard)
    pairs, tally = work_through(
        run.path("pairs"), num_shards, make, write_pairs, read_pairs, "preference pairs"
    )
    dropped = {reason: tally[f"dropped_{reason}"] for reason in DROP_REASONS}
    require_pairs(pairs, {reason: count for reason, count in dropped.items() if count})
    figures = _figures(pairs, tally) | time_metrics(tally)
    run.log_once(figures, step=0)
    _warn_if_collapsing(figures, env)
    return pairs, figures | {"ranked_by": ranked_by}


def _answer_counts(candidates: Sequence[Candidates], env: LanguageEnv) -> Counter[str]:
    """How many answers there are, how many of them are chains, and their actions altogether."""
    parsed = [env.extractor.parse(a.text) for c in candidates for a in c.actions]
    lengths = [len(chain.actions) for chain in parsed if not isinstance(chain, Rejection)]
    return Counter(num_answers=len(parsed), num_legal=len(lengths), num_actions=sum(lengths))


def _figures(pairs: Sequence[PreferencePair], tally: Mapping[str, float]) -> dict[str, float]:
    """Counts of pairs, drops by reason, and the guard rails: how the actor answers."""
    drops = {f"pairs/{name}": n for name, n in tally.items() if name.startswith("dropped_")}
    return {
        "num_pairs": len(pairs),
        "num_env_steps": tally["num_actions"],
        "pairs/margin": float(np.mean([pair.margin for pair in pairs])),
        **drops,
        "rollout/invalid_rate": 1 - tally["num_legal"] / tally["num_answers"],
        "rollout/chain_length": tally["num_actions"] / max(1, tally["num_legal"]),
    }


def _warn_if_collapsing(figures: Mapping[str, float], env: LanguageEnv) -> None:
    """Says so when many answers are no chains, or hardly any has more than one action."""
    advice = "Lower training.learning_rate, raise simpo.nll_weight, or decode constrained"
    invalid, length = figures["rollout/invalid_rate"], figures["rollout/chain_length"]
    if invalid > COLLAPSED_INVALID_RATE:
        log.warning(
            "%.0f %% of the actor's answers are no chains: it is collapsing. %s",
            100 * invalid,
            advice,
        )
    elif length < COLLAPSED_CHAIN_LENGTH and env.grammar.max_chain_length > 1:
        log.warning("the actor's chains have %.2f actions: it is collapsing. %s", length, advice)
