"""Behaviour cloning: the actor learns to answer as scripted behaviour, pairs or episodes do.

Reads the actor's weights, and --trajectories or --pairs if given (else scripted behaviour is made
on the spot); writes RUN/checkpoints/ and RUN/actor/. With --only_successes or --best_fraction the
best episodes alone are cloned (%BC).

A tiny actor knows nothing, so the founding recipe begins here: with a mixture of shortest paths
and random chains it learns the form of a completion and a first notion of the state. Only the
tokens of the completions are learnt.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lactchain import plugins
from lactchain.config.bounds import AtLeast1, Bounded, Count, PositiveShare, Share
from lactchain.config.settings import (
    ActorConfig,
    EnvironmentConfig,
    RunConfig,
    TrainingConfig,
    check,
)
from lactchain.data.episodes import sampled_episodes, sampled_states
from lactchain.data.rollouts import Rollouts
from lactchain.data.sources import open_pairs, open_trajectories
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.scripted import Mixture, OptimalChains, RandomChains, RememberingPolicy
from lactchain.errors import ConfigError, DataError
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.run import Run
from lactchain.stages.stage_run import BatchSettings, stage
from lactchain.types import Action, Policy, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lactchain.trainers.behavior_cloning import CloningRow

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BehaviorConfig(Bounded):
    """Scripted behaviour to clone: a mixture of shortest paths and random chains.

    A world may name another policy in the place of shortest paths, whose episodes are played then.
    """

    num_chains: Count | None = 20_000
    """Chains to clone, from start states drawn uniformly. Null, in a pipeline: follows from the
    world."""
    competent_fraction: Share | None = 0.3
    """Share of chains along a shortest path, cut to the longest legal chain, or of that policy.
    Null, in a pipeline: follows from the world."""
    max_random_length: AtLeast1 = 4
    """Longest random chain, in actions; lengths are uniform."""
    corrected: bool = False
    """Where episodes are played, random chains lead on, and what the competent policy would have
    answered in their place is learnt (DAgger, Ross, Gordon and Bagnell 2011)."""


@dataclass(frozen=True)
class WarmStartConfig(Bounded):
    """How a base model that knows nothing comes to know the form of a completion."""

    behavior: BehaviorConfig = BehaviorConfig()
    training: TrainingConfig = TrainingConfig()
    target_skill: Share | None = None
    """Retrieval skill at which the cloning ends, before all chains are learnt, if nine in ten
    completions are chains; a skill below .2 when all are learnt is an error. Null: the cloning ends
    when all are learnt, whatever came of it."""


@dataclass(frozen=True)
class TrainBCConfig(Bounded):
    """Behaviour cloning."""

    run: RunConfig = RunConfig(run_dir="runs/train_bc")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    behavior: BehaviorConfig = BehaviorConfig()
    training: TrainingConfig = TrainingConfig()
    target_skill: Share | None = None
    """As in `WarmStartConfig`."""
    pairs: str | None = None
    """Folder or file of preference pairs whose chosen completions are cloned instead of scripted
    behaviour; null: scripted behaviour."""
    trajectories: str | None = None
    """Folder or file of episodes whose completions are cloned instead; null: scripted behaviour."""
    only_successes: bool = False
    """Of the episodes, those that reached their goal (%BC in LMRL-Gym's maze)."""
    best_fraction: PositiveShare = 1.0
    """Of these, the share with the best returns, in (0, 1] (%BC; 0.3 in LMRL-Gym's Wordle)."""
    only_final_completions: bool = False
    """Of each, its last completion alone: of a success the one that reached the goal, however poor
    those before it were."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_one_source = self.pairs is None or self.trajectories is None
        check(is_one_source, "trajectories", "null beside `pairs`", self.trajectories)


def main(config: TrainBCConfig) -> dict[str, Any]:
    """Trains the actor; returns how many completions it learnt.

    `ConfigError` where it does not read as it was to.
    """
    batches = [BatchSettings("training.batch_size", "actor.max_new_tokens")]
    with stage("Behaviour cloning", config, batches) as run:
        if run.outcome is None:
            run.finish(clone(config, run))
    return run.outcome


def clone(config: TrainBCConfig, run: Run) -> dict[str, Any]:
    """What is to be cloned, and the training on it."""
    from lactchain.models.actor import policy_file
    from lactchain.models.loading import load_actor
    from lactchain.trainers.base import save_result, train, training_arguments
    from lactchain.trainers.behavior_cloning import BehaviorCloningTrainer, ReadingCheck

    rollouts, skill = Rollouts(config.environment), config.target_skill
    env = rollouts.env
    model, tokenizer = load_actor(config.actor, trainable=True)
    rows, dropped = rows_to_clone(config, env, tokenizer)
    args = training_arguments(
        config.training, run.path("checkpoints"), config.run.seed, report_to=config.run.report_to
    )
    trainer = BehaviorCloningTrainer(model, args, rows, tokenizer, run=run)
    if skill is not None:
        look = ReadingCheck(trainer, skill, config.actor, rollouts)
        trainer.add_callback(look)
    train(trainer)
    save_result(trainer, run.path("actor"), policy_file(config.actor, env.grammar))
    summary = {"num_examples": len(rows), "num_dropped": sum(dropped.values())}
    if skill is not None:
        learnt = round(len(rows) * min(1.0, trainer.state.epoch))
        summary |= {"num_examples": learnt} | require_reading(look.figures(), config, learnt)
    plugins.call("card", config, run, "actor", summary)
    return summary


def require_reading(
    figures: dict[str, float], config: TrainBCConfig, learnt: int
) -> dict[str, float]:
    """The figures of an actor that reads; `ConfigError` for one that does not."""
    from lactchain.trainers.behavior_cloning import MIN_ANSWERED, MIN_SKILL, reads

    required = min(config.target_skill, MIN_SKILL)
    skill, answered = figures.get("retrieval_skill", 0.0), figures["answered_rate"]
    if reads(figures, required):
        if skill < config.target_skill:
            log.info(
                "all %d chains are learnt, at a retrieval skill of %.2f: enough to go on with, but"
                " below the target_skill of %g",
                *(learnt, skill, config.target_skill),
            )
        return figures
    raise ConfigError(
        f"target_skill: expected a retrieval skill of {required:g} and {MIN_ANSWERED:g} of the"
        f" completions to be chains, got {skill:.2f} and {answered:.2f} after {learnt} chains: what"
        " states say makes too little difference yet; clone longer in a new folder"
        " (behavior.num_chains, more of them shortest paths by behavior.competent_fraction)"
    )


def rows_to_clone(
    config: TrainBCConfig, env: LanguageEnv, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list["CloningRow"], Counter[str]]:
    """What a configuration wants cloned, and how much of it was dropped for which reason."""
    from lactchain.models.loading import context_of
    from lactchain.models.prompting import PromptTemplate
    from lactchain.trainers.behavior_cloning import cloning_rows, decision_rows

    template = PromptTemplate(tokenizer, config.actor.strategy, env.grammar)
    context = context_of(config.actor)
    if config.trajectories is None:
        return cloning_rows(_examples(config, env), template, tokenizer, context)
    recorded = open_trajectories(config.trajectories, env)
    episodes = chosen_episodes(recorded, config.only_successes, config.best_fraction)
    only_final = config.only_final_completions
    return decision_rows(episodes, template, tokenizer, context, only_final), Counter()


def _examples(config: TrainBCConfig, env: LanguageEnv) -> list[tuple[str, Action]]:
    """Observations, and the completions to clone."""
    if config.pairs is not None:
        pairs = open_pairs(config.pairs, env)
        return [(pair.prompt, Action(pair.chosen, pair.chosen_token_ids)) for pair in pairs]
    if env.history != 1 and env.view.competent is None and env.view.model is not None:
        # Texts remember what came before: whole episodes, by one who is told all.
        whole = make_language_env(replace(config.environment, template=None, history=1))
        return played_examples(env, _optimal(whole), config.behavior, config.run.seed)
    return behavior_examples(env, config.behavior, config.run.seed)


def behavior_examples(
    env: LanguageEnv, config: BehaviorConfig, seed: int
) -> list[tuple[str, Action]]:
    """Observations of start states drawn uniformly, and scripted completions to them.

    In a world whose view names a competent policy, decisions of episodes that are played so.
    `ConfigError` where shortest paths are unknown, or the observations do not tell the states.
    """
    if env.view.competent is not None:
        return played_examples(env, env.view.policies[env.view.competent](env), config, seed)
    if env.view.model is None:
        log.warning("environment: no exact model and no competent policy: random chains are cloned")
        return played_examples(env, RandomChains(env.grammar), config, seed)
    optimal = _optimal(env)
    policy, drawn = _mixture(optimal, env, config), derive_seed(seed, "behavior")
    states = sampled_states(env, config.num_chains, drawn, without=optimal.lost)
    distinct = {str(state): state for state in states}  # each is drawn often, and reads the same
    shown = {key: env.reset(options={"state": state})[0] for key, state in distinct.items()}
    observations = [shown[str(state)] for state in states]
    seeds = [derive_seed(seed, "behavior", i) for i in range(config.num_chains)]
    return list(zip(observations, policy.act(observations, seeds), strict=True))


def played_examples(
    env: LanguageEnv, competent: Policy, config: BehaviorConfig, seed: int
) -> list[tuple[str, Action]]:
    """Decisions of whole episodes, of behaviour that reads the view's own template.

    Episodes start as those of a critic do: where one may practise, in turn.
    """
    competent = RememberingPolicy(competent) if config.corrected else competent
    policy = _mixture(competent, env, config)
    examples: list[tuple[str, Action]] = []
    for episode in sampled_episodes(env, config.num_chains, derive_seed(seed, "behavior")):
        text, info = env.reset(seed=episode.seed, options=episode.options)
        over = False
        while not over and info["state"] not in env.held_back:
            if len(examples) == config.num_chains:
                return examples
            row_seed = derive_seed(seed, "behavior", len(examples))
            own_text = env.text_for(policy)
            [action] = policy.act([own_text], [row_seed])
            [learnt] = competent.act([own_text], [row_seed]) if config.corrected else [action]
            examples.append((text, learnt))
            text, _, terminated, truncated, info = env.step(action.text)
            over = terminated or truncated
    return examples


def _optimal(env: LanguageEnv) -> OptimalChains:
    try:
        return OptimalChains(env)
    except ValueError as error:
        raise ConfigError(f"environment.{error}") from error


def _mixture(competent: Policy, env: LanguageEnv, config: BehaviorConfig) -> Mixture:
    longest = min(config.max_random_length, env.grammar.max_chain_length)
    return Mixture(competent, RandomChains(env.grammar, longest), config.competent_fraction)


def chosen_episodes(
    trajectories: Sequence[Trajectory], only_successes: bool = False, best_fraction: float = 1.0
) -> list[Trajectory]:
    """The episodes that %BC clones, in their order: the successes, and of these the best share.

    Of equal returns the earlier episodes count as better; the share is rounded up. `DataError`
    where no episode is left.
    """
    if only_successes and any(t.infos[-1].get("success") is None for t in trajectories):
        raise DataError(
            "trajectories: expected episodes that tell whether they ended well, got some that do"
            " not; set only_successes to false, or record them with a success"
        )
    kept = [t for t in trajectories if not only_successes or t.infos[-1].get("success")]
    if not kept:
        raise DataError(
            f"trajectories: expected successful episodes, found none among {len(trajectories)}; "
            "set only_successes to false"
        )
    ranking = sorted(range(len(kept)), key=lambda i: -kept[i].episode_return)
    best = sorted(ranking[: math.ceil(best_fraction * len(kept))])
    return [kept[i] for i in best]
