"""Tokens of prompts and completions before an actor is loaded, for estimates of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.errors import DataError
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.loading import check_encoder, load_own_tokenizer
from lactchain.models.meta_models import TextLengths, at_depth, build
from lactchain.models.places import resolve_weights
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.specs import critic_spec, shape_of
from lactchain.settings import CriticConfig, EnvironmentConfig, PlayerConfig
from lactchain.strategies import resolve_strategy
from lactchain.types import Action

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_EPISODES = 16
"""Episodes that are looked into for the longest observation."""

LETTERS_PER_TOKEN = 3
"""A cautious guess where no tokenizer was downloaded: English has more than four."""


def actor_lengths(environment: EnvironmentConfig, actor: PlayerConfig) -> TextLengths:
    """The lengths of what an actor reads and writes."""
    env = make_language_env(environment)
    texts, grammar = sample_observations(env), env.grammar
    vocabulary = shape_of(actor.model).get_text_config().vocab_size
    tokenizer = find_tokenizer(actor)
    if tokenizer is None:
        strategy = resolve_strategy(actor.strategy, grammar.action_names, grammar.max_chain_length)
        prefix, prompt = _guess([strategy]), _guess(texts)
        return TextLengths(prefix, prompt + 8, actor.max_new_tokens, vocabulary)
    template = PromptTemplate.for_grammar(tokenizer, actor.strategy, grammar)
    longest = max(map(len, template.encode_batch(texts)))
    prefix = len(template.prefix_ids)
    found = TextLengths(prefix, longest - prefix, actor.max_new_tokens, vocabulary)
    if actor.decoding == "constrained":
        automaton = build_automaton(grammar, tokenizer)
        return replace(found, completion=automaton.longest, columns=len(automaton.tokens))
    return found


def find_tokenizer(actor: PlayerConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of an actor; None where its model is not there yet."""
    try:
        resolve_weights(actor.model)
    except DataError:
        return None
    return load_own_tokenizer(actor)


def chain_length(environment: EnvironmentConfig, actor: PlayerConfig) -> int | None:
    """Tokens of the longest chain and its end, by an actor's own tokenizer; None: not known."""
    grammar, tokenizer = make_language_env(environment).grammar, find_tokenizer(actor)
    if tokenizer is None or not grammar.action_names:
        return None
    names = range(len(grammar.action_names))
    chains = [Action(grammar.render([name] * grammar.max_chain_length)) for name in names]
    return max(map(len, encode_completions(chains, tokenizer)))


def critic_length(environment: EnvironmentConfig, critic: CriticConfig) -> int:
    """The tokens of the longest text that a critic reads."""
    env = make_language_env(environment)
    texts = sample_observations(env)
    actions = [_longest_completion(env)] * len(texts) if critic.mode == "action_value" else None
    shape = build(at_depth(critic_spec(critic), 1))  # reading takes no weights
    try:
        _, _, tokenizer = check_encoder(critic)
    except DataError:
        texts = EmbeddingCritic(shape, None, critic).texts(texts, actions)
        return min(critic.max_length, _guess(texts))
    reader = EmbeddingCritic(shape, tokenizer, critic)
    return max(map(len, reader.tokenize(reader.texts(texts, actions))))


def sample_observations(env: LanguageEnv) -> list[str]:
    """Observations of some episodes, from the first one to the last."""
    texts, completion = [], _longest_completion(env)
    for seed in range(NUM_EPISODES):
        text, over = env.reset(seed=seed)[0], False
        texts.append(text)
        while not over:
            text, _, terminated, truncated, _ = env.step(completion)
            texts.append(text)
            over = terminated or truncated
    return texts


def _longest_completion(env: LanguageEnv) -> str:
    names = env.grammar.action_names
    if not names:
        return "a word "
    longest = int(np.argmax([len(name) for name in names]))
    return env.grammar.render([longest] * env.grammar.max_chain_length)


def _guess(texts: Sequence[str]) -> int:
    return -(-max(map(len, texts)) // LETTERS_PER_TOKEN)
