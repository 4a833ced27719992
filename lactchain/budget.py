"""What a script will take of this device's memory, stage by stage, before it loads anything.

The trainers are imported where a training is sized: scripts that only play start without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lactchain import distributed
from lactchain.console import console, plain, table
from lactchain.data.critic_data import compares_with_exact
from lactchain.data.text_lengths import actor_lengths, critic_length
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError, DataError
from lactchain.jobs import (
    ActorStageConfig,
    CollectRolloutsConfig,
    EvaluateConfig,
    MakePreferencesConfig,
    PlayConfig,
    RunPipelineConfig,
    TrainBCConfig,
    TrainCriticConfig,
    TrainILQLConfig,
    TrainMCConfig,
    TrainSimPOConfig,
)
from lactchain.models.cascade import CACHE_BYTES
from lactchain.models.loading import device
from lactchain.models.memory import (
    PARTS,
    MemoryEstimate,
    Sharing,
    resting_memory,
    rollout_memory,
    scoring_memory,
    training_memory,
)
from lactchain.models.meta_models import Batch, Heads, ModelSpec
from lactchain.models.specs import (
    actor_spec,
    autocast,
    available_memory,
    critic_spec,
    is_large,
    saved_critic,
    saved_values,
)
from lactchain.settings import (
    ActorConfig,
    CriticConfig,
    EnvironmentConfig,
    TrainingConfig,
    ValueConfig,
)

TO_BE_TRAINED = "(yet to be trained)"
"""Stands for the folder of an adapter or critic of a round to come."""

PROCESS_BYTES = {"cpu": 600_000_000, "cuda": 700_000_000}
"""What a process takes before it loads a model: libraries, or a CUDA context and its workspaces."""

PHASES_PER_TABLE = 4
"""Columns that a terminal shows beside each other."""

SCORED_TEXTS = 256
"""Texts that a critic values at once."""


@dataclass(frozen=True)
class Phase:
    """A part of a script in which the same models are loaded.

    Attributes:
        name: what happens.
        estimate: of one process.
        mend: what makes it smaller.
    """

    name: str
    estimate: MemoryEstimate
    mend: str


def print_budget(*configs: Any) -> dict[str, Any]:
    """Prints the memory of each phase of a script beside what the device has; makes nothing."""
    found = [phase for config in configs for phase in phases(config)]
    if not found:
        console.print("no language model is loaded")
        return {}
    free, processes = available_memory(), distributed.world_size()
    title = f"Memory on {device()}" + (f", each of {processes} processes" if processes > 1 else "")
    for start in range(0, len(found), PHASES_PER_TABLE):
        table(title, _rows(found[start : start + PHASES_PER_TABLE], free))
    for phase in found:
        if too_much(phase, free):
            console.print(plain(refusal(phase, free)), soft_wrap=True)
    return {}


def _rows(found: list[Phase], free: int) -> list[dict[str, str]]:
    """The parts of some phases, their sums, and what is free."""
    own = PROCESS_BYTES[device().type]
    parts = [part for part in PARTS if any(getattr(p.estimate, part) for p in found)]
    sizes = {part: [getattr(p.estimate, part) for p in found] for part in parts}
    sizes["process"] = [own] * len(found)
    sizes["total"] = [p.estimate.total + own for p in found]
    if any(p.estimate.mapped for p in found):
        sizes["mapped in it"] = [p.estimate.mapped for p in found]
    sizes["available"] = [free] * len(found)
    names = [p.name for p in found]
    return [
        {"GiB": part} | dict(zip(names, map(_gib, row), strict=True)) for part, row in sizes.items()
    ]


def check_budget(*configs: Any) -> None:
    """Refuses what cannot fit on this device, before it is loaded; costs tiny models nothing.

    Raises:
        ConfigError: it does not fit.
    """
    large = [config for config in configs if any(map(_is_large, models_of(config)))]
    free = available_memory() if large else 0
    for phase in (phase for config in large for phase in phases(config)):
        if too_much(phase, free):
            raise ConfigError(refusal(phase, free))


def too_much(phase: Phase, free: int) -> bool:
    """Whether a phase takes more than is free; weights in mapped files may leave the memory."""
    return phase.estimate.private + PROCESS_BYTES[device().type] > free


def refusal(phase: Phase, free: int) -> str:
    """One line: what does not fit, and how to mend it."""
    need = phase.estimate.private + PROCESS_BYTES[device().type]
    return (
        f"{phase.name}: takes about {_gib(need)} GiB on {device()}, {_gib(free)} GiB are free; "
        f"{phase.mend}"
    )


def models_of(config: Any) -> list[str]:
    """The base models that a configuration names."""
    if isinstance(config, RunPipelineConfig):
        return [] if config.tiny is not None else [config.actor.model, config.critic.config.model]
    if isinstance(config, PlayConfig) and config.actor is None:
        return []
    named = [config.actor.model]
    return [*named, config.critic.model] if isinstance(config, TrainCriticConfig) else named


def phases(config: Any) -> Iterator[Phase]:
    """The phases of a script, in their order."""
    return PHASES[type(config)](config)


def _collecting(config: CollectRolloutsConfig) -> Iterator[Phase]:
    yield _answers(
        "rollouts", config.environment, config.actor, config.collect.num_envs, "collect.num_envs"
    )


def _evaluating(config: EvaluateConfig) -> Iterator[Phase]:
    rows, setting = config.evaluation.num_envs, "evaluation.num_envs"
    actor = config.actor
    if config.evaluation.num_samples:  # sampled freely
        actor = replace(actor, decoding="free") if actor.decoding == "constrained" else actor
    yield _answers("evaluation", config.environment, actor, rows, setting)


def _playing(config: PlayConfig) -> Iterator[Phase]:
    if config.actor is not None:
        yield _answers("play", config.environment, config.actor, 1, "")


def _ranking(config: MakePreferencesConfig | TrainSimPOConfig) -> Iterator[Phase]:
    states = config.preferences.states_per_shard
    rows = states * config.preferences.num_candidates
    setting = "preferences.states_per_shard"
    critic = None
    if config.critic is not None:
        critic = saved_critic(config.critic, config.actor)
    yield from _pairs(config.environment, config.actor, critic, states, rows, setting)


def _pairs(
    environment: EnvironmentConfig,
    actor: ActorConfig,
    critic: CriticConfig | None,
    states: int,
    rows: int,
    setting: str,
) -> Iterator[Phase]:
    answers = _answers("candidates", environment, actor, rows, setting, distinct=states)
    if critic is None:
        yield answers
        return
    spec = critic_spec(critic)
    beside = resting_memory(spec)
    yield replace(answers, estimate=answers.estimate + beside)
    length = critic_length(environment, critic)
    scoring = scoring_memory(spec, rows=min(SCORED_TEXTS, 2 * rows), tokens=length)
    estimate = scoring + resting_memory(actor_spec(actor))
    yield Phase("ranking", estimate, _mend(actor, "shorten critic.max_length"))


def _simpo(config: TrainSimPOConfig) -> Iterator[Phase]:
    if config.pairs is None:
        yield from _ranking(config)
    yield _preference_training(config)


def _preference_training(config: TrainSimPOConfig) -> Phase:
    from lactchain.trainers.batch_sizes import preference_batch

    spec, batch = actor_spec(config.actor, training=True), preference_batch(config)
    return _training("SimPO", spec, batch, config.training, config.actor)


def _cloning(config: TrainBCConfig) -> Iterator[Phase]:
    from lactchain.trainers.batch_sizes import cloning_batch

    spec = actor_spec(config.actor, training=True)
    yield _training("cloning", spec, cloning_batch(config), config.training, config.actor)


def _critic(config: TrainCriticConfig) -> Iterator[Phase]:
    if config.trajectories is None:
        rows, setting = config.collect.num_envs, "collect.num_envs"
        yield _answers("rollouts", config.environment, config.actor, rows, setting)
    spec, training = critic_spec(config.critic, training=True), config.training
    length = critic_length(config.environment, config.critic)
    batch = Batch(training.batch_size, length, loss="critic")
    yield _training("critic", spec, batch, training, config.critic)
    if compares_with_exact(config, make_language_env(config.environment)):
        estimate = resting_memory(actor_spec(config.actor)) + resting_memory(spec)
        estimate += MemoryEstimate(cache=CACHE_BYTES[device().type])
        lower = "set compare_with_exact to false"
        yield Phase("exact values", estimate, _mend(config.actor, lower))


def _values(config: TrainMCConfig | TrainILQLConfig) -> Iterator[Phase]:
    from lactchain.trainers.batch_sizes import value_batch

    ilql = isinstance(config, TrainILQLConfig)
    settings: ValueConfig = config.ilql if ilql else config.mc
    spec = actor_spec(config.actor, training=True)
    size = settings.head_size or 2 * spec.shape.get_text_config().hidden_size
    heads = Heads(2 if ilql else 1, size, target=ilql, policy=settings.cloning_weight > 0)
    batch = value_batch(config, settings)
    yield _training("values", spec, batch, config.training, config.actor, heads)


def _pipeline(config: RunPipelineConfig) -> Iterator[Phase]:
    """The phases of a round, with the adapter that is there from the second one on."""
    world, actor, critic = config.environment, config.actor, config.critic
    bare = replace(actor, lora=None)
    all_trained = actor.lora is None and actor.adapter is None
    if actor.dtype == "auto" and (all_trained or config.warm_start is not None):
        actor = replace(actor, dtype="float32")  # as such a training stores it
    trained = (
        actor if actor.lora is None else replace(actor, adapter=actor.adapter or TO_BE_TRAINED)
    )
    if config.warm_start is not None:
        start = config.warm_start
        yield from _cloning(
            TrainBCConfig(
                environment=world, actor=bare, behavior=start.behavior, training=start.training
            )
        )
    yield from _evaluating(
        EvaluateConfig(environment=world, actor=trained, evaluation=config.evaluation)
    )
    yield from _critic(
        TrainCriticConfig(
            environment=world,
            actor=replace(trained, decoding="constrained"),
            critic=critic.config,
            collect=critic.collect,
            training=critic.training,
            compare_with_exact=critic.compare_with_exact,
        )
    )
    yield from _round_of_simpo(world, actor, critic.config, config.simpo)


def _round_of_simpo(
    world: EnvironmentConfig, actor: ActorConfig, critic: CriticConfig, stage: ActorStageConfig
) -> Iterator[Phase]:
    preferences = stage.preferences
    ranked = preferences.rank_by == "advantage"
    trained = replace(critic, checkpoint=critic.checkpoint or TO_BE_TRAINED)
    states = preferences.states_per_shard
    yield from _pairs(
        world,
        actor,
        trained if ranked else None,
        states,
        states * preferences.num_candidates,
        "simpo.preferences.states_per_shard",
    )
    yield _preference_training(
        TrainSimPOConfig(environment=world, actor=actor, training=stage.training)
    )


PHASES: dict[type, Callable[[Any], Iterator[Phase]]] = {
    CollectRolloutsConfig: _collecting,
    EvaluateConfig: _evaluating,
    PlayConfig: _playing,
    MakePreferencesConfig: _ranking,
    TrainSimPOConfig: _simpo,
    TrainBCConfig: _cloning,
    TrainCriticConfig: _critic,
    TrainMCConfig: _values,
    TrainILQLConfig: _values,
    RunPipelineConfig: _pipeline,
}


def _answers(
    name: str,
    environment: EnvironmentConfig,
    actor: ActorConfig,
    rows: int,
    setting: str,
    distinct: int | None = None,
) -> Phase:
    """A phase in which an actor answers `rows` prompts at once, `distinct` of them different."""
    lengths, spec = actor_lengths(environment, actor), actor_spec(actor)
    distinct = distinct or rows
    if actor.decoding == "scored" and actor.values is None:
        rows *= actor.num_candidates
    estimate = rollout_memory(
        spec,
        rows=rows,
        distinct=distinct,
        prefix=lengths.prefix,
        prompt=lengths.prompt,
        answer=lengths.answer,
        num_columns=lengths.columns,
        device_type=device().type,
    )
    if actor.values is not None:
        estimate += _guide(actor, estimate)
    lower = f"lower {setting}" if setting else "shorten environment.history"
    return Phase(name, estimate, _mend(actor, lower))


def _guide(actor: ActorConfig, answers: MemoryEstimate) -> MemoryEstimate:
    """What trained values take beside the actor that they guide, or twice over where they rank."""
    spec, heads = saved_values(actor.values, actor)
    text = spec.shape.get_text_config()
    size = heads.size * (text.hidden_size + text.vocab_size)
    values = resting_memory(spec) + MemoryEstimate(heads=4 * size * heads.num_q)
    ranked = values + values if actor.decoding == "scored" and heads.target else values
    return ranked + MemoryEstimate(cache=answers.cache)


def _training(
    name: str,
    spec: ModelSpec,
    batch: Batch,
    training: TrainingConfig,
    model: ActorConfig | CriticConfig,
    heads: Heads | None = None,
) -> Phase:
    estimate = training_memory(
        spec,
        batch,
        checkpointing=training.gradient_checkpointing,
        autocast=autocast(),
        heads=heads,
        sharing=_sharing(),
    )
    lower = "lower training.batch_size"
    if not training.gradient_checkpointing:
        lower += " or set training.gradient_checkpointing"
    return Phase(name, estimate, _mend(model, lower))


def _sharing() -> Sharing:
    """How the processes of this launch share what lasts, as accelerate was told."""
    size = distributed.world_size()
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return Sharing(size, "fsdp")
    return Sharing(size, "ddp" if size > 1 else "alone")


def _mend(model: ActorConfig | CriticConfig, lower: str) -> str:
    """What helps: smaller batches; weights of fewer bits where they have many."""
    if model.load_in_4bit:
        return lower
    quantise = "load_in_4bit"
    if model.dtype != "bfloat16" and device().type == "cpu":
        quantise = "dtype bfloat16, which is read where it lies"
    return f"{lower}, or give the {_role(model)} {quantise}"


def _role(model: ActorConfig | CriticConfig) -> str:
    return "actor" if isinstance(model, ActorConfig) else "critic"


def _is_large(model: str) -> bool:
    """Models that are not there are left to those who load them, who say how to get them."""
    try:
        return is_large(model)
    except DataError:
        return False


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"
