"""From an actor and a critic to the pairs that SimPO learns from."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lactchain.data.candidates import sample_candidates
from lactchain.data.preferences import Candidates, make_pairs, read_pairs, write_pairs
from lactchain.data.rollouts import Rollouts, sampled_states
from lactchain.data.shards import derive_seed, work_through
from lactchain.environments.extractors import Rejection
from lactchain.environments.language import LanguageEnv
from lactchain.errors import DataError
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.run import Run
from lactchain.settings import ActorConfig, EnvironmentConfig, PreferenceConfig
from lactchain.types import PreferencePair

STATES_PER_SHARD = 256
COLLAPSED_INVALID_RATE = 0.3
log = logging.getLogger(__name__)


def make_preferences(
    environment: EnvironmentConfig,
    actor_config: ActorConfig,
    critic_folder: str | None,
    config: PreferenceConfig,
    seed: int,
    run: Run,
) -> tuple[list[PreferencePair], dict[str, float]]:
    """Pairs from the actor's own answers, kept in the run's folder, and their figures.

    Raises:
        DataError: every pair was dropped.
    """
    rollouts = Rollouts(environment)
    env = rollouts.env
    actor = LanguageActor.from_config(actor_config, env.grammar)
    critic = None if critic_folder is None else EmbeddingCritic.load(critic_folder)
    rank = "return" if critic is None else config.rank_by
    log.info("pairs are ranked by %s", "return" if rank == "return" else f"critic {critic_folder}")
    states = sampled_states(env, config.num_states, derive_seed(seed, "pairs"))
    dropped: Counter[str] = Counter()
    answers: list[Candidates] = []

    def make(shard: int) -> Sequence[PreferencePair]:
        candidates = sample_candidates(
            actor,
            rollouts,
            states[shard * STATES_PER_SHARD : (shard + 1) * STATES_PER_SHARD],
            config.num_candidates,
            derive_seed(seed, "candidates", shard),
            critic,
            config.gamma if critic is None else critic.config.gamma,
            config.discount_per if critic is None else critic.config.discount_per,
        )
        answers.extend(candidates)
        try:
            pairs, reasons = make_pairs(candidates, rank=rank, min_margin=config.min_margin)
        except DataError as error:
            log.warning("shard %d gives no pair: %s", shard, error)
            return []
        dropped.update(reasons)
        return pairs

    num_shards = -(-len(states) // STATES_PER_SHARD)
    pairs = work_through(
        run.path("pairs"), num_shards, make, write_pairs, read_pairs, "preference pairs"
    )
    if not pairs:
        raise DataError(
            f"all pairs of {len(states)} states were dropped; sample more answers per state, at a "
            "higher temperature, or lower preferences.min_margin"
        )
    metrics = _figures(pairs, dropped, answers, env) | rollouts.metrics()
    run.log(metrics, step=0)
    return pairs, metrics


def _figures(
    pairs: Sequence[PreferencePair],
    dropped: Counter[str],
    candidates: Sequence[Candidates],
    env: LanguageEnv,
) -> dict[str, float]:
    """Counts of pairs, drops by reason, and the guard rails: how the actor answers."""
    figures: dict[str, float] = {
        "num_pairs": len(pairs),
        "pairs/margin": float(np.mean([pair.margin for pair in pairs])),
    }
    figures |= {f"pairs/dropped_{reason}": count for reason, count in dropped.items()}
    if candidates:
        parsed = [env.extractor.parse(a.text) for c in candidates for a in c.actions]
        lengths = [len(chain.actions) for chain in parsed if not isinstance(chain, Rejection)]
        invalid = 1 - len(lengths) / len(parsed)
        figures["rollout/invalid_rate"] = invalid
        figures["rollout/chain_length"] = float(np.mean(lengths)) if lengths else 0.0
        if invalid > COLLAPSED_INVALID_RATE:
            log.warning(
                "%.0f %% of the actor's answers are no chains: it is collapsing. Lower "
                "training.learning_rate, raise simpo.nll_weight, or decode constrained",
                100 * invalid,
            )
    return figures
