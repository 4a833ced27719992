"""Makes preference pairs: K completions to each state, played and ranked, best over worst.

Reads the actor's weights, --critic if given (without one, completions are ranked by their return)
and --trajectories if given; writes RUN/pairs/*.parquet. K is --preferences.num_candidates (the
founding text gives each state twice). What is dropped is counted by reason. The rules of pairs are
in `data.preferences`, what a completion is worth in `data.candidates`.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from lactchain.config.settings import EnvironmentConfig, PreferenceConfig, RunConfig, SamplerConfig
from lactchain.data import alarms, preferences
from lactchain.data.candidates import sample_candidates, some_after_completion
from lactchain.data.episodes import RecordedText, go_round, recorded_texts, sampled_states
from lactchain.data.evaluations import time_metrics
from lactchain.data.parquet import work_through
from lactchain.data.rollouts import Rollouts
from lactchain.data.sources import open_trajectories
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.errors import ConfigError, DataError
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.run import Run
from lactchain.stages.stage_run import BatchSettings, stage
from lactchain.types import ChainGrammar, Critic, Policy, PreferencePair

if TYPE_CHECKING:
    from lactchain.models.actor import LanguageActor

HOTTER = (1.5, 2.25)
"""Temperatures, over the actor's own, of completions to states that are asked again, since all were
one chain: no pair could be made there, and training on other states alone unlearns these."""

NEARLY_RANDOM = 8.0
"""The same of the last completions to such states, which are legal chains: an actor that is sure of
a wrong one, as in a loop, would hear of no other."""

log = logging.getLogger(__name__)

BATCHES = (BatchSettings("preferences.states_per_shard", "actor.max_new_tokens"),)


@dataclass(frozen=True)
class MakePreferencesConfig:
    """Preference pairs from an actor's completions, ranked by a critic."""

    run: RunConfig = RunConfig(run_dir="runs/make_preferences")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: SamplerConfig = SamplerConfig()
    critic: str | None = None
    """Folder of a trained critic; null: completions are ranked by return."""
    trajectories: str | None = None
    """Folder or file of episodes, whose texts are asked again, each as often as any other, with
    what they remember (see `preferences.share_after_completion`); null: what states show."""
    preferences: PreferenceConfig = PreferenceConfig()


def main(config: MakePreferencesConfig) -> dict[str, Any]:
    """Makes the pairs; returns their figures."""
    with stage("Preference pairs", config, BATCHES) as run:
        if run.outcome is None:
            run.finish(pairs_into(config, run)[1])
    return run.outcome


def pairs_into(
    config: MakePreferencesConfig, run: Run
) -> tuple[list[PreferencePair], dict[str, Any]]:
    """Pairs by the actor and the critic of a configuration, in RUN/pairs, and their figures."""
    from lactchain.models.actor import load_player
    from lactchain.models.critic import EmbeddingCritic

    rollouts = Rollouts(config.environment)
    actor = load_player(config.actor, rollouts.env.grammar)
    critic = None if config.critic is None else EmbeddingCritic.load(config.critic)
    ranked_by = "return" if critic is None else f"critic {config.critic}"
    asked = None
    if config.trajectories is not None:
        episodes = open_trajectories(config.trajectories, rollouts.env)
        after_completion = config.preferences.share_after_completion is not None
        asked = recorded_texts(episodes, rollouts.env, after_completion)
    others = _explorers(actor, config.actor, rollouts.env.grammar)
    seed, folder = config.run.seed, run.path("pairs")
    pairs, figures = make_preferences(
        actor, critic, rollouts, config.preferences, seed=seed, folder=folder, asked=asked, **others
    )
    run.log_once(figures, step=0)
    return pairs, figures | {"ranked_by": ranked_by}


def _explorers(
    actor: "LanguageActor", config: SamplerConfig, grammar: ChainGrammar
) -> dict[str, list["LanguageActor"]]:
    """The actor at higher temperatures, and bound to legal chains: `explorers` and `legal`.

    None where it is greedy, since so would they be.
    """
    if not config.temperature:
        return {}

    def heated(factor: float, decoding: str) -> "LanguageActor":
        hotter = replace(config, decoding=decoding, temperature=factor * config.temperature)
        return actor.with_config(hotter, grammar)

    explorers, legal = [heated(factor, config.decoding) for factor in HOTTER], []
    with suppress(ConfigError, DataError):  # where legal chains cannot be listed, none is drawn
        legal = [heated(factor, "constrained") for factor in (1.0, NEARLY_RANDOM)]
    return {"explorers": explorers + legal[1:], "legal": legal}


def make_preferences(
    policy: Policy,
    critic: Critic | None,
    world: Rollouts | EnvironmentConfig | str,
    settings: PreferenceConfig | None = None,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    explorers: Sequence[Policy] = (),
    legal: Sequence[Policy] = (),
    asked: Sequence[RecordedText] | None = None,
) -> tuple[list[PreferencePair], dict[str, float]]:
    """Pairs of any policy's completions, ranked by any critic, and their figures.

    The processes share the work out; a killed run keeps its finished files, counts included.

    Args:
        critic: None ranks completions by what they earned.
        world: where the completions are played.
        settings: the defaults when None.
        folder: of the files; None: none are kept.
        explorers: asked in turn where the policy's completions are all one chain.
        legal: asked in turn where they are no chains.
        asked: questions to go round, for the share of the states that follow a completion; None:
            the policy's own completions lead there.

    Raises:
        NoPairsError: every pair was dropped.
    """
    rollouts = world if isinstance(world, Rollouts) else Rollouts(world)
    settings, env = settings or PreferenceConfig(), rollouts.env
    states = _states_to_ask(env, settings, asked, derive_seed(seed, "pairs"))
    leads_on = settings.share_after_completion if asked is None else None

    def make(
        part: Sequence[State | RecordedText], shard: int
    ) -> tuple[list[PreferencePair], Counter[str]]:
        before = rollouts.tally.copy()
        shard_seed = derive_seed(seed, "candidates", shard)
        if leads_on:
            part = some_after_completion(policy, rollouts, part, leads_on, shard_seed)
        candidates = sample_candidates(
            policy, rollouts, part, settings.num_candidates, shard_seed, critic, explorers, legal
        )
        pairs, dropped = preferences.make_pairs(candidates, min_margin=settings.min_margin)
        tally = rollouts.tally - before + _completion_counts(candidates, env)
        tally["num_form"] += sum(not isinstance(env.read(pair.rejected), Chain) for pair in pairs)
        tally["num_flat"] += sum(preferences.is_flat(c, settings.min_margin) for c in candidates)
        return pairs, tally + Counter({f"dropped_{reason}": n for reason, n in dropped.items()})

    with TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        size, title = settings.states_per_shard, "preference pairs"
        pairs, tally = work_through(Path(place), states, size, make, preferences.PAIRS, title)
    dropped = {reason: tally[f"dropped_{reason}"] for reason in preferences.DROP_REASONS}
    preferences.require_pairs(pairs, {reason: count for reason, count in dropped.items() if count})
    figures = _figures(pairs, tally, len(states)) | time_metrics(tally)
    figures["pairs/no_spread_rate"] = tally["num_flat"] / len(states)
    if env.grammar.max_chain_length > 1:
        figures["rollout/single_rate"] = tally["num_single"] / max(1, tally["num_legal"])
    alarms.warn(figures)
    return pairs, figures


def _states_to_ask(
    env: LanguageEnv, settings: PreferenceConfig, asked: Sequence[RecordedText] | None, seed: int
) -> list[State | RecordedText]:
    """States that may be practised, and texts of recorded episodes, as many as settings say."""
    share = settings.share_after_completion
    if asked is None:
        if share and env.history != 1:
            raise ConfigError(
                "preferences.share_after_completion: expected 0 with a history of"
                f" {env.history} items, which it would forget, got {share}; give episodes whose"
                " texts are asked, by --trajectories"
            )
        return sampled_states(env, settings.num_states, seed)
    recorded = round((1.0 if share is None else share) * settings.num_states) if asked else 0
    others = sampled_states(env, settings.num_states - recorded, seed)
    return go_round(asked, recorded, seed) + others


def _completion_counts(
    candidates: Sequence[preferences.Candidates], env: LanguageEnv
) -> Counter[str]:
    """How the policy itself answers, and the actions of all that is played, explorers' too."""
    texts = [action.text for c in candidates for action in c.actions]
    read = {text: env.extractor.parse(text) for text in set(texts)}
    legal = {text: len(chain.actions) for text, chain in read.items() if isinstance(chain, Chain)}
    own = [action.text for c in candidates for action in c.own]
    lengths = [legal[text] for text in own if text in legal]
    return Counter(
        num_completions=len(own),
        num_legal=len(lengths),
        num_single=lengths.count(1),
        num_own_actions=sum(lengths),
        num_actions=sum(legal.get(text, 0) for text in texts),
    )


def _figures(
    pairs: Sequence[PreferencePair], tally: Mapping[str, float], num_states: int
) -> dict[str, float]:
    """Counts of pairs, plays, drops by reason, and the guard rails: how the actor answers."""
    drops = {f"pairs/{name}": n for name, n in tally.items() if name.startswith("dropped_")}
    return {
        "num_pairs": len(pairs),
        "num_env_steps": tally["num_actions"] + tally["num_replayed_actions"],
        "pairs/num_plays": tally["num_plays"],
        "pairs/plays_per_state": tally["num_plays"] / num_states,
        "pairs/margin": float(np.mean([pair.margin for pair in pairs])),
        "pairs/form_rate": tally["num_form"] / len(pairs),
        **drops,
        "rollout/invalid_rate": 1 - tally["num_legal"] / tally["num_completions"],
        "rollout/chain_length": tally["num_own_actions"] / max(1, tally["num_legal"]),
    }
