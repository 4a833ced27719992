"""The language model as a policy: observations in, completions out."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.settings import ActorConfig, GuidedActorConfig, PlayerConfig
from lactchain.errors import ConfigError, DataError
from lactchain.models.adapters import merged
from lactchain.models.attention import context_length
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.generation.decoding import Decoder
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate, reading_of
from lactchain.models.weights import weights_in
from lactchain.plugins import required
from lactchain.storage.files import read_json
from lactchain.storage.manifests import verify_listed
from lactchain.types import Action, ChainGrammar, Policy

POLICY_FILE = "policy.json"
"""Beside the weights of a trained actor: how it is asked, and what it may answer."""

MOST_REMEMBERED = 100_000
"""So many completions that were read are kept, for when they come again."""

ELSEWHERE = ("model", "adapter", "lora", "served")
"""Fields of `ActorConfig` that are not stored with trained weights."""


class LanguageActor:
    """A `Policy` over a causal language model, for one version of its weights.

    Args:
        model: it answers as it is, with its adapter, if any, beside its weights.
        grammar: the legal completions, as the environment's extractor states them.
        values: those of `config.values`, where they are loaded already (`plugins`: `values`).

    Attributes:
        name: what trajectories call it.
        template: makes prompts of observations.
        decoder: samples completions; free or constrained, as `config.decoding` says.
        values: by which its completions are guided or ranked; None: by none.
        ranking: what all legal completions are worth, under scored decoding; else None.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: PlayerConfig,
        grammar: ChainGrammar,
        *,
        values: Any = None,
    ) -> None:
        self.name = f"{config.adapter or config.model} ({config.decoding})"
        self.tokenizer = tokenizer
        self.template = PromptTemplate(tokenizer, config.strategy, grammar)
        if config.values is not None and values is None:
            values = required("values", "actor.values").TrainedValues(config, tokenizer)
        ranked = config.decoding == "scored"
        make = Decoder if values is None or ranked else values.decoder
        self.decoder = make(
            model,
            tokenizer.eos_token_id,
            prefix_ids=self.template.prefix_ids,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            automaton=(
                build_automaton(grammar, tokenizer) if config.decoding == "constrained" else None
            ),
        )
        self.ranking = values.rank(grammar, self.template, model) if ranked else None
        self._context = context_length(model.config)
        self.values = values
        self._texts: dict[tuple[int, ...], str] = {}

    @classmethod
    def from_config(cls, config: PlayerConfig, grammar: ChainGrammar) -> Self:
        """Loads model and adapter, frozen; see `load_actor` for the errors."""
        model, tokenizer = load_actor(config)
        return cls(merged(model), tokenizer, config, grammar)

    @classmethod
    def load(cls, directory: str | Path, **changes: Any) -> Self:
        """The actor that a training has saved, asked and sampled as it was there.

        Fields of `GuidedActorConfig` may differ: `temperature=0.0`. `DataError` if the folder does
        not say how its actor is asked, and as `load_actor`.
        """
        config, grammar = read_policy(Path(directory))
        return cls.from_config(replace(config, **changes), grammar)

    def with_config(self, config: PlayerConfig, grammar: ChainGrammar) -> Self:
        """The same weights, in the same place, asked and sampled in another way."""
        model, values = self.decoder.model, self.values
        return LanguageActor(model, self.tokenizer, config, grammar, values=values)

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations; row b draws its randomness from `seeds[b]` alone.

        `ConfigError` if a prompt leaves no room for a completion in the model's context.
        """
        prompts = self._prompts(observations)
        if self.ranking is not None:
            return self.ranking.best(observations)
        sampled = self.decoder.sample(prompts, seeds)
        return [replace(row, text=self._text(row.token_ids)) for row in sampled]

    def enumerate(self, observations: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """All C legal completions, and how probable each is for each of B observations, (B, C).

        `ValueError` if the actor decodes freely; `ConfigError` as `act`.
        """
        completions, probabilities = self.decoder.enumerate(self._prompts(observations))
        return [self._text(completion) for completion in completions], probabilities

    def log_probs(self, observations: Sequence[str], actions: Sequence[Action]) -> np.ndarray:
        """How probable each of C completions is for each of B observations, (B, C) logarithms.

        They were sampled, different ones, each to its end. `ValueError` if one begins another, or
        the actor does not decode freely; `ConfigError` as `act`.
        """
        ids = [action.token_ids for action in actions]
        return self.decoder.log_probs(self._prompts(observations), ids)

    def _prompts(self, observations: Sequence[str]) -> list[list[int]]:
        """Token ids of the prompts, each with room for a completion behind it."""
        prompts = self.template.encode_batch(observations)
        context, completion = self._context, self.decoder.longest_completion
        for observation, prompt in zip(observations, prompts, strict=True):
            if len(prompt) + completion > context:
                raise ConfigError(
                    f"actor: the prompt of {observation[:40]!r}... has {len(prompt)} tokens and a "
                    f"completion up to {completion}, but the model reads {context}; shorten "
                    "environment.history, environment.template or actor.max_new_tokens"
                )
        return prompts

    def _text(self, token_ids: tuple[int, ...]) -> str:
        # A dict of its own: an actor is sent to workers, which no `lru_cache` survives.
        if len(self._texts) > MOST_REMEMBERED:
            self._texts.clear()
        if token_ids not in self._texts:
            self._texts[token_ids] = reading_of(token_ids, self.tokenizer)
        return self._texts[token_ids]


def load_player(config: PlayerConfig, grammar: ChainGrammar) -> Policy:
    """The actor of a configuration: loaded into this process, or behind its servers."""
    if config.served is None:
        return LanguageActor.from_config(config, grammar)
    return required("engines", "actor.served").ServedActor.from_config(config, grammar)


def policy_file(config: ActorConfig, grammar: ChainGrammar) -> dict[str, str]:
    """The file, by its name, that `LanguageActor.load` needs beside the weights."""
    asked = {name: value for name, value in asdict(config).items() if name not in ELSEWHERE}
    stored = {"schema_version": 1, "actor": asked, "grammar": asdict(grammar)}
    return {POLICY_FILE: json.dumps(stored, indent=1) + "\n"}


def read_policy(directory: Path) -> tuple[GuidedActorConfig, ChainGrammar]:
    """How the actor in a folder is asked, and what it may answer; `DataError` if it is not said."""
    file = directory / POLICY_FILE
    verify_listed(file)
    stored = read_json(
        file,
        "expected an actor that train_bc or train_simpo saved; name another as actor.model, or by "
        "LanguageActor.from_config",
    )
    try:
        grammar = stored["grammar"] | {"action_names": tuple(stored["grammar"]["action_names"])}
        config = GuidedActorConfig(**stored["actor"] | weights_in(directory))
        return config, ChainGrammar(**grammar)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: damaged ({error!r})") from error
