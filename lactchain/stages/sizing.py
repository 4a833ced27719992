"""Settings of a pipeline that follow from its world: what is measured of it, and the rules.

A setting that is null is given its value by its rule in `RULES`. Rules see a `WorldFacts`, and what
is set by then (one of them how the actor writes); each says why. So one preset plays every world.
`run_pipeline` prints what was set and which half of a rule applied, and keeps both in
RUN/sizes.json.
"""

import math
from collections.abc import Callable
from typing import Any

from lactchain.config.parsing import Config, with_values
from lactchain.environments.language import make_language_env
from lactchain.errors import DataError
from lactchain.stages.world_facts import BY_MODEL, LONGEST_CHAIN, WorldFacts, gamma_of
from lactchain.types import Action


def _within(value: float, least: int, most: int, why: str) -> tuple[int, str]:
    """A number within its bounds, and why it is this one: by its rule, or by a bound."""
    if least <= value <= most:
        return round(value), why
    bound, name = (least, "least") if value < least else (most, "most")
    return bound, f"the {name} for such a world; {why} would be {round(value):,}"


def _rounded(value: float) -> float:
    """To one digit: nobody needs more of such a number."""
    return float(f"{value:.1g}")


MOST_ROWS = 50_000
"""Episodes, and states of pairs, of a round: in a world of more states the later rounds are for the
others, and an estimate of how many there are may be far off."""
FEWEST_CLONES, MOST_CLONES = 25_600, 150_000
CLONES_OF_A_WAY, MOST_CLONES_OF_A_WAY = 50, 200
"""A tenth of the fewest clones has each of the 48 best ways of the 4x4 grid 53 times. Lights out,
where all of a text decides each action, is learnt by 200 and not by 50."""
ROWS_OF_AN_ACTION = 12
"""Rows of SimPO, with repetition, for each action of each state's solution in a round. A tiny actor
learns the 4x4 grid by the pairs of one round in 840 updates of 64, and needs two of 480."""


def target_of(world: WorldFacts) -> tuple[dict[str, float], str]:
    """Figures that end the rounds: nearly all that can be had, and hardly a completion wrong."""
    is_known = world.source == BY_MODEL
    if is_known and (world.has_chance or world.by_reward):
        return {"of_optimum": 0.98, "sampled_invalid_rate": 0.003}, "nearly the optimum"
    if not world.tells_success:
        return {}, "none, since the view has no `success`, which tells a good ending"
    if is_known:
        target = {"success_rate": 0.99, "actions_over_shortest": 1.05}
        return target | {"sampled_invalid_rate": 0.003}, "nearly all, by nearly shortest paths"
    if world.has_chance:
        return {}, "none, since chance hides how much success can be had"
    return {"success_rate": 0.99, "sampled_invalid_rate": 0.003}, "nearly all; play has to tell"


def num_epochs(world: WorldFacts, config: Any) -> tuple[int, str]:
    """Epochs of a round of SimPO, by how many rows, with repetition, it is to see."""
    rows, why = _within(
        ROWS_OF_AN_ACTION * world.num_states * world.path_length, 19_200, 115_200,
        f"{ROWS_OF_AN_ACTION} for each action of each state's solution",
    )  # fmt: skip
    epochs = max(1, round(rows / config.simpo.preferences.num_states))
    return epochs, f"as many as come to {rows:,} rows: {why}"


def best_share(world: WorldFacts, config: Any) -> tuple[float, str]:
    """The share of best chains among those that are cloned."""
    if config.environment.template != "brief":
        return 1.0, "all: this world speaks in sentences, which have to be read first"
    if world.source != BY_MODEL:
        return 0.1, "a tenth, of a policy that the world names; if it names none, all are random"
    share = CLONES_OF_A_WAY * world.num_ways / FEWEST_CLONES
    if share <= 0.1:
        return 0.1, "a tenth of what is cloned"
    why = f"each different best way {CLONES_OF_A_WAY} times: they have to be learnt by heart"
    return round(min(1.0, share), 2), why


def num_episodes(world: WorldFacts) -> tuple[int, str]:
    """Episodes of a critic's round; the more, the more luck has to even out."""
    least = 1_024
    if world.has_chance:
        # Without a model the states that episodes met behind a text are all that tell its chances.
        least = 4_096 if world.source == BY_MODEL else 16_384
    most = max(least, 6_000, min(2 * world.num_states, MOST_ROWS))
    return _within(6 * world.num_states, least, most, "six from each state")


def room_for_a_chain(config: Any) -> tuple[int, str]:
    """Tokens of the longest chain and its end, by the actor's own tokenizer if that is there.

    The words of tiny models that a run builds are tokens.
    """
    from lactchain.models.loading import load_own_tokenizer
    from lactchain.models.prompting import encode_completions
    from lactchain.models.weights import resolve_weights

    guess = 2 * config.environment.max_chain_length + 7, "two for each action, and the brackets"
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
    longest = max(map(len, tokens), default=None)
    return guess if longest is None else (longest, "the longest chain and its end")


def chain_length(world: WorldFacts) -> tuple[int, str]:
    """Actions of a chain at most."""
    if world.has_chance:
        return 1, "one action, whose result has chance in it: to look after each"
    ways = "of all shortest ways" if world.source == BY_MODEL else "solution that was played"
    why = f"as long as the longest {ways}, so that one chain can reach the goal"
    return _within(world.longest_path, 1, LONGEST_CHAIN, why)


def num_chains(world: WorldFacts, config: Any) -> tuple[int, str]:
    """Chains of an episode at most."""
    needed = 4 * math.ceil(world.longest_path / config.environment.max_chain_length)
    if needed > world.max_chains:
        return needed, "four times what the longest solution takes"
    return world.max_chains, "the number of the world's view, or its default"


def penalty(world: WorldFacts) -> tuple[float, str]:
    """The reward of a completion that is no chain."""
    if -world.worst_reward > 2 * world.reward_scale:
        return -_rounded(-world.worst_reward), "the worst reward"
    return -_rounded(2 * world.reward_scale), "twice the usual return"


def margin(world: WorldFacts) -> tuple[float, str]:
    """The least difference of two chains that make a pair: nearly equal ones teach little."""
    share, why = (1, ", since chance makes all small") if world.has_chance else (4, "")
    return _rounded(share / 100 * world.reward_scale), f"{share} % of the usual return{why}"


def discount(world: WorldFacts) -> tuple[float, str]:
    """The critic's discount."""
    length = "four times as long as" if world.has_chance else "as long as"
    return gamma_of(world.path_length, world.has_chance), f"a horizon {length} a solved episode"


RULES: dict[str, Callable[[WorldFacts, Any], tuple[Any, str]]] = {
    "environment.max_chain_length": lambda world, config: chain_length(world),
    "environment.max_chains": num_chains,
    "environment.invalid_penalty": lambda world, config: penalty(world),
    "environment.chain_cost": lambda world, config: (
        (0.0, "none: it takes many looks to be safe from chance")
        if world.has_chance
        else (_rounded(0.04 * world.reward_scale), "4 % of the usual return asks for few calls")
    ),
    "actor.max_new_tokens": lambda world, config: room_for_a_chain(config),
    "warm_start.behavior.num_chains": lambda world, config: _within(
        MOST_CLONES_OF_A_WAY * world.num_ways,
        FEWEST_CLONES,
        MOST_CLONES,
        f"{MOST_CLONES_OF_A_WAY} for each best way"
        f" ({world.num_ways or 'none is'} known beforehand)",
    ),
    "warm_start.behavior.competent_fraction": best_share,
    "warm_start.training.batch_size": lambda world, config: (
        32, "32 over all processes: a form takes many updates"
    ),
    "critic.config.gamma": lambda world, config: discount(world),
    "critic.collect.num_episodes": lambda world, config: num_episodes(world),
    "critic.collect.shard_size": lambda world, config: _within(
        -(-config.critic.collect.num_episodes // 4), 1, 960, "a quarter of the episodes"
    ),
    "critic.training.batch_size": lambda world, config: _within(
        world.num_states / 8, 8, 240, "an eighth of the states, over all processes"
    ),
    "simpo.preferences.num_states": lambda world, config: _within(
        4 * world.num_states,
        1024,
        max(4_000, min(3 * world.num_states, MOST_ROWS)),
        "each state four times",
    ),
    # Good chains are rarer where there is more to choose.
    "simpo.preferences.num_candidates": lambda world, config: _within(
        16 * math.log2(max(world.num_actions, 2)), 16, 64, "sixteen for each bit of an action"
    ),
    "simpo.preferences.min_margin": lambda world, config: margin(world),
    "simpo.training.batch_size": lambda world, config: (64, "64 over all processes"),
    "simpo.training.num_epochs": num_epochs,
    "target": lambda world, config: target_of(world),
    "num_rounds": lambda world, config: (
        (12, "twelve at most")
        if config.target
        else (2, "two, since no figure can tell when it is enough")
    ),
}  # fmt: skip
"""By the settings, dotted, in this order, as some go by what others have set: the value by the
world's size and the configuration as it stands, and why, in the words of the half that applies."""


def fill(config: Config, world: WorldFacts, processes: int) -> tuple[Config, dict[str, tuple]]:
    """A configuration with numbers in the place of nulls; these by their keys, each with its why.

    So many `processes` share batches out.
    """
    chosen = {}
    for key, rule in RULES.items():
        if is_null(config, key):
            value, why = rule(world, config)
            if key.endswith(".batch_size") and processes > 1:
                value, why = max(1, round(value / processes)), f"{why}; {processes} share it"
            chosen[key] = value, why
            config = with_values(config, {key: value})
    return config, chosen


def is_null(config: Any, key: str) -> bool:
    """Whether a setting is there, and null."""
    *parts, name = key.split(".")
    for part in parts:
        config = getattr(config, part)
        if config is None:
            return False
    return getattr(config, name) is None
