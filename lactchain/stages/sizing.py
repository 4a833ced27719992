"""Settings of a pipeline that follow from its world: what is measured of it, and the rules.

A setting that is null is given its value by its rule in `RULES`. Rules see a `WorldFacts` alone
(one of them also how the actor writes), and each says why; so the same preset plays every world.
`run_pipeline` prints what was set, and keeps it in RUN/sizes.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from lactchain.config.parsing import Config, with_values
from lactchain.environments.language import make_language_env
from lactchain.errors import DataError
from lactchain.stages.world_facts import BY_MODEL, WorldFacts, gamma_of
from lactchain.types import Action


class SizingRule(NamedTuple):
    """How a setting follows from the world.

    Attributes:
        value: from the world's size and the configuration as it stands.
        why: what the rule goes by, for who reads the log.
        is_shared: whether these are rows of a batch, which the processes share out.
    """

    value: Callable[[WorldFacts, Any], Any]
    why: str
    is_shared: bool = False


def _clamped(value: float, least: int, most: int) -> int:
    return round(min(most, max(least, value)))


def _rounded(value: float) -> float:
    """To one digit: nobody needs more of such a number."""
    return float(f"{value:.1g}")


LONGEST_CHAIN = 20
MOST_ROWS = 50_000
"""Episodes, and states of pairs, of a round: in a world of more states the later rounds are for the
others, and an estimate of how many there are may be far off."""
FEWEST_CLONES, MOST_CLONES = 25_600, 150_000
CLONES_OF_A_WAY, MOST_CLONES_OF_A_WAY = 50, 200
"""A tenth of the fewest clones has each of the 48 best ways of the 4x4 grid 53 times. Lights out,
where all of a text decides each action, is learnt by 200 and not by 50."""
ROWS_OF_AN_ACTION = 7
"""Rows of SimPO, with repetition, for each action of each state's solution in a round. A tiny actor
learns the pairs of the 4x4 grid in 450 updates of 64."""


def target_of(world: WorldFacts) -> dict[str, float]:
    """Figures that end the rounds: nearly all that can be had, and hardly a completion wrong."""
    if world.source != BY_MODEL:
        can_be_met = world.tells_success and not world.has_chance
        return {"success_rate": 0.99, "sampled_invalid_rate": 0.003} if can_be_met else {}
    if world.has_chance or world.by_reward:
        return {"of_optimum": 0.98, "sampled_invalid_rate": 0.003}
    if not world.tells_success:
        return {}
    return {"success_rate": 0.99, "actions_over_shortest": 1.05, "sampled_invalid_rate": 0.003}


def rows_of_simpo(world: WorldFacts) -> int:
    """How many rows, with repetition, a round of SimPO sees."""
    return _clamped(ROWS_OF_AN_ACTION * world.num_states * world.path_length, 19_200, 115_200)


def best_share(world: WorldFacts, template: str | None) -> float:
    """The share of best chains among those that are cloned."""
    if template != "brief":
        return 1.0
    return round(min(1.0, max(0.1, CLONES_OF_A_WAY * world.num_ways / FEWEST_CLONES)), 2)


def num_episodes(world: WorldFacts) -> int:
    """Episodes of a critic's round."""
    least = 1_024
    if world.has_chance:
        # Without a model the states that episodes met behind a text are all that tell its chances.
        least = 4_096 if world.source == BY_MODEL else 16_384
    most = max(least, 6_000, min(2 * world.num_states, MOST_ROWS))
    return _clamped(6 * world.num_states, least, most)


def room_for_a_chain(config: Any) -> int:
    """Tokens of the longest chain and its end, by the actor's own tokenizer if that is there.

    The words of tiny models that a run builds are tokens.
    """
    from lactchain.models.loading import load_own_tokenizer
    from lactchain.models.prompting import encode_completions
    from lactchain.models.weights import resolve_weights

    guess = 2 * config.environment.max_chain_length + 7
    if config.tiny is not None:
        return guess
    try:
        resolve_weights(config.actor.model)
    except DataError:
        return guess
    grammar = make_language_env(config.environment).grammar
    names = range(len(grammar.action_names))
    chains = [Action(grammar.render([name] * grammar.max_chain_length)) for name in names]
    tokens = encode_completions(chains, load_own_tokenizer(config.actor)) if chains else []
    return max(map(len, tokens), default=guess)


RULES = {
    "environment.max_chain_length": SizingRule(
        lambda world, config: 1 if world.has_chance else min(world.longest_path, LONGEST_CHAIN),
        "as long as the longest of all shortest ways to the goal, so that one chain can reach it;"
        " one action where actions have chance results, to look after each",
    ),
    "environment.max_chains": SizingRule(
        lambda world, config: max(
            world.max_chains,
            4 * math.ceil(world.longest_path / config.environment.max_chain_length),
        ),
        "the world's own number, or four times what the longest solution takes",
    ),
    "environment.invalid_penalty": SizingRule(
        lambda world, config: -_rounded(max(2 * world.reward_scale, -world.worst_reward)),
        "twice the usual return, or the worst reward if that is worse",
    ),
    "environment.chain_cost": SizingRule(
        lambda world, config: 0.0 if world.has_chance else _rounded(0.04 * world.reward_scale),
        "4 % of the usual return asks for few calls; none where it takes many looks to be safe",
    ),
    "actor.max_new_tokens": SizingRule(
        lambda world, config: room_for_a_chain(config),
        "the longest chain and its end, by the tokenizer of a model that is there; else two tokens"
        " for each action, and the brackets",
    ),
    "warm_start.behavior.num_chains": SizingRule(
        lambda world, config: _clamped(
            MOST_CLONES_OF_A_WAY * world.num_ways, FEWEST_CLONES, MOST_CLONES
        ),
        f"{MOST_CLONES_OF_A_WAY} for each different best way, {FEWEST_CLONES:,} at least for the"
        f" form, {MOST_CLONES:,} at most",
    ),
    "warm_start.behavior.competent_fraction": SizingRule(
        lambda world, config: best_share(world, config.environment.template),
        f"a tenth of what is cloned, or each different best way {CLONES_OF_A_WAY} times: where"
        " hardly two states share one, they have to be learnt by heart; all of it where a world"
        " speaks in sentences, which have to be read first",
    ),
    "warm_start.training.batch_size": SizingRule(
        lambda world, config: 32,
        "32 over all processes: it takes many updates to learn a form",
        is_shared=True,
    ),
    "critic.config.gamma": SizingRule(
        lambda world, config: gamma_of(world.path_length, world.has_chance),
        "a horizon as long as a solved episode, four times that where there is chance",
    ),
    "critic.collect.num_episodes": SizingRule(
        lambda world, config: num_episodes(world),
        f"six from each state, two where there are many, {MOST_ROWS:,} at most; more where luck has"
        " to even out, most where no model tells what is to be expected",
    ),
    "critic.collect.shard_size": SizingRule(
        lambda world, config: min(960, -(-config.critic.collect.num_episodes // 4)),
        "a quarter of the episodes, 960 at most: work for several processes",
    ),
    "critic.training.batch_size": SizingRule(
        lambda world, config: _clamped(world.num_states / 8, 8, 240),
        "an eighth of the states, 240 at most, over all processes",
        is_shared=True,
    ),
    "simpo.preferences.num_states": SizingRule(
        lambda world, config: _clamped(
            4 * world.num_states, 1024, max(4_000, min(3 * world.num_states, MOST_ROWS))
        ),
        f"each state four times, three times where there are many, {MOST_ROWS:,} at most",
    ),
    "simpo.preferences.num_candidates": SizingRule(
        lambda world, config: _clamped(16 * math.log2(max(world.num_actions, 2)), 16, 64),
        "sixteen for each bit of an action: good chains are rarer where there is more to choose",
    ),
    "simpo.preferences.min_margin": SizingRule(
        lambda world, config: _rounded((0.01 if world.has_chance else 0.04) * world.reward_scale),
        "4 % of the usual return: pairs of nearly equal chains teach little, and disturb; 1 % where"
        " chance makes all differences small",
    ),
    "simpo.training.batch_size": SizingRule(
        lambda world, config: 64, "64 over all processes", is_shared=True
    ),
    "simpo.training.num_epochs": SizingRule(
        lambda world, config: max(
            1, round(rows_of_simpo(world) / config.simpo.preferences.num_states)
        ),
        f"as many as come to {ROWS_OF_AN_ACTION} rows for each action of each state's solution",
    ),
    "target": SizingRule(lambda world, config: target_of(world), "as much as this world allows"),
    "num_rounds": SizingRule(
        lambda world, config: 12 if config.target else 2,
        "twelve; two where no figure can tell when it is enough",
    ),
}
"""By the settings, dotted; in this order, as some go by what others have set."""


def fill(config: Config, world: WorldFacts, processes: int) -> tuple[Config, dict[str, Any]]:
    """A configuration with numbers in the place of nulls, and these by their keys.

    So many `processes` share batches out.
    """
    chosen = {}
    for key, rule in RULES.items():
        if is_null(config, key):
            value = rule.value(world, config)
            chosen[key] = max(1, round(value / processes)) if rule.is_shared else value
            config = with_values(config, {key: chosen[key]})
    return config, chosen


def is_null(config: Any, key: str) -> bool:
    """Whether a setting is there, and null."""
    *parts, name = key.split(".")
    for part in parts:
        config = getattr(config, part)
        if config is None:
            return False
    return getattr(config, name) is None
