"""Whether a policy reads: which of several states does a completion answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Action, Policy, ask

NUM_STATES = 128
BATCH = 16


class ScoringPolicy(Policy, Protocol):
    """A policy that knows how probable any completion is."""

    def log_probs(self, observations: Sequence[str], actions: Sequence[Action]) -> np.ndarray:
        """Log-probabilities (B, C) of C different completions to B observations."""
        ...


def retrieval_figures(
    policy: ScoringPolicy,
    env: LanguageEnv,
    observations: Sequence[str],
    seed: int,
    at_once: int = NUM_STATES,
    num_states: int = NUM_STATES,
) -> dict[str, float]:
    """How often a completion is more probable to its own state than to others.

    Some `num_states` different observations are answered, and those whose completion is a chain are
    compared in batches of `BATCH`. `answered_rate`: share of the states to which it was one.
    `retrieval_accuracy`: share of the completions that are most
    probable behind their own prompt, or behind one to which the same was said. `retrieval_skill`:
    how much of the way from chance to 1 that is; about 0 where a policy has stopped reading, as
    also where it says one thing to everything. Neither where fewer than two got a chain.
    The policy samples freely, at most `at_once` completions at once; observations may repeat.
    """
    distinct = list(dict.fromkeys(observations))
    order = np.random.default_rng([seed]).permutation(len(distinct))[:num_states]
    asked = [distinct[i] for i in order]
    texts, actions = _answers(policy, env, asked, seed, at_once)
    answered = {"answered_rate": len(texts) / len(asked)}
    if len(texts) < 2:
        return answered
    batches = (slice(start, start + BATCH) for start in range(0, len(texts), BATCH))
    outcomes = [_found(policy, texts[batch], actions[batch]) for batch in batches]
    found, chance = zip(*outcomes, strict=True)
    accuracy, by_chance = np.concatenate(found).mean(), np.concatenate(chance).mean()
    skill = (accuracy - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0
    return answered | {"retrieval_accuracy": float(accuracy), "retrieval_skill": float(skill)}


def _answers(
    policy: Policy, env: LanguageEnv, texts: Sequence[str], seed: int, at_once: int
) -> tuple[list[str], list[Action]]:
    """Those of some observations that were answered by chains, and these chains."""
    seeds = [derive_seed(seed, "retrieval", i) for i in range(len(texts))]
    actions = ask(policy, texts, seeds, at_once)
    answered = [
        (text, action)
        for text, action in zip(texts, actions, strict=True)
        if action.stop_reason == "stop" and isinstance(env.extractor.parse(action.text), Chain)
    ]
    return [text for text, _ in answered], [action for _, action in answered]


def _found(
    policy: ScoringPolicy, texts: Sequence[str], actions: Sequence[Action]
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each of B completions finds a state that was answered so, and by chance (B,)."""
    distinct = {action.text: action for action in actions}
    number = {text: n for n, text in enumerate(distinct)}
    said = np.array([number[action.text] for action in actions])
    likeliest = policy.log_probs(texts, list(distinct.values())).argmax(axis=0)[said]
    same = said[:, None] == said
    return same[np.arange(len(said)), likeliest], same.mean(axis=1)
