"""How large the largest batch of a training is, before a model is loaded: for estimates of memory.

Data that are there already are measured; else their longest texts are reckoned with.
"""

from __future__ import annotations

from pathlib import Path

from lactchain.data.preferences import read_pairs
from lactchain.data.text_lengths import actor_lengths
from lactchain.data.token_view import one_step_targets
from lactchain.environments.language import make_language_env
from lactchain.errors import DataError
from lactchain.jobs import TrainBCConfig, TrainILQLConfig, TrainMCConfig, TrainSimPOConfig
from lactchain.models.loading import context_of, load_tokenizer, resolve_weights
from lactchain.models.meta_models import Batch
from lactchain.models.prompting import PromptTemplate
from lactchain.settings import ActorConfig, ValueConfig
from lactchain.trainers.behavior_cloning import IGNORED, training_rows
from lactchain.trainers.simpo import preference_rows
from lactchain.trainers.token_values import DecisionGroups, TreeCollator, read_view


def preference_batch(config: TrainSimPOConfig) -> Batch:
    """Of preference pairs: a prompt with both answers."""
    rows = config.training.batch_size
    if config.pairs is not None and Path(config.pairs).exists() and _is_there(config.actor):
        env, tokenizer = make_language_env(config.environment), _tokenizer(config.actor)
        template = PromptTemplate.for_grammar(tokenizer, config.actor.strategy, env.grammar)
        context = context_of(config.actor)
        pairs, _ = preference_rows(read_pairs(config.pairs), template, tokenizer, context)
        answers = max(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in pairs)
        prompt = max(len(row["prompt_ids"]) for row in pairs)
    else:
        lengths = actor_lengths(config.environment, config.actor)
        prompt, answers = lengths.prefix + lengths.prompt, 2 * lengths.answer
    return Batch(rows, prompt + 1 + answers, 1 + answers)


def cloning_batch(config: TrainBCConfig) -> Batch:
    """Of examples to clone: a prompt with its answer."""
    rows = config.training.batch_size
    sources = [path for path in (config.pairs, config.trajectories) if path is not None]
    if _is_there(config.actor) and all(Path(path).exists() for path in sources):
        env, tokenizer = make_language_env(config.environment), _tokenizer(config.actor)
        examples, _ = training_rows(config, env, tokenizer)
        answer = max(len(row["labels"]) - row["labels"].count(IGNORED) for row in examples)
        tokens = max(len(row["input_ids"]) for row in examples)
    else:
        lengths = actor_lengths(config.environment, config.actor)
        answer, tokens = lengths.answer, lengths.prefix + lengths.prompt + lengths.answer
    return Batch(rows, tokens, answer + 1, "cloning")


def value_batch(config: TrainMCConfig | TrainILQLConfig, settings: ValueConfig) -> Batch:
    """Of groups of decisions, laid out as prefix trees."""
    rows = config.training.batch_size
    if _is_there(config.actor) and Path(config.trajectories).exists():
        grammar = make_language_env(config.environment).grammar
        view = read_view(config.trajectories, config.actor, grammar)
        targets = one_step_targets(view, settings.gamma)
        targets = targets.merged() if settings.group_by == "prompt" else targets
        groups = DecisionGroups(view, targets, settings.group_by)
        collate = TreeCollator(view, targets, settings.gamma, False, 0)
        batch = collate(_largest(groups, rows))
        behind = batch["behind_input_ids"].shape if "behind_nodes" in batch else (0, 0)
        return Batch(*batch["input_ids"].shape, len(batch["state_nodes"]), "values", behind)
    lengths = actor_lengths(config.environment, config.actor)
    prompt = lengths.prefix + lengths.prompt
    states = rows * lengths.answer
    return Batch(rows, prompt + lengths.answer, states, "values", (rows, prompt))


def _largest(groups: DecisionGroups, count: int) -> list[dict]:
    """The groups of most decisions."""
    sizes = sorted(range(len(groups)), key=lambda i: len(groups.groups[i]))
    return [groups[number] for number in sizes[-count:]]


def _is_there(actor: ActorConfig) -> bool:
    try:
        resolve_weights(actor.model)
    except DataError:
        return False
    return True


def _tokenizer(actor: ActorConfig):
    folder = resolve_weights(actor.model)
    return load_tokenizer(folder, actor.trust_remote_code, padding_side="left", chat=True)
