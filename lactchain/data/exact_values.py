"""The true values of a language policy, where its answers can be enumerated."""

from __future__ import annotations

import numpy as np

from lactchain.data.evaluations import StateValues
from lactchain.environments.exact import pad_chains, policy_values
from lactchain.environments.language import LanguageEnv
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic

MAX_CHAINS = 5_000


def can_enumerate(env: LanguageEnv) -> bool:
    """Whether there are few enough chains, and the view lists states and has an exact model."""
    choices, longest = len(env.grammar.action_names), env.grammar.max_chain_length
    num_chains = sum(choices**length for length in range(1, longest + 1))
    known = env.view.states is not None and env.view.model is not None
    return known and num_chains <= MAX_CHAINS


def critic_against_exact(
    actor: LanguageActor, critic: EmbeddingCritic, env: LanguageEnv
) -> StateValues:
    """V(s) by the critic beside V^π(s) of the actor under constrained decoding, all states.

    π(chain | state) comes from enumerating every legal answer, V^π from solving the linear system.
    The state must be all that the observation says: no text about what happened before.
    """
    config = critic.config
    states = env.view_states()
    observations = [env.reset(options={"state": state})[0] for state in states]
    answers, probabilities = actor.enumerate(observations)
    chains = pad_chains([env.extractor.parse(answer).actions for answer in answers])
    exact = policy_values(
        env.view.model(env.env),
        chains,
        probabilities,
        config.gamma,
        config.discount_per,
        env.invalid_penalty,
        env.chain_cost,
    )
    return StateValues(
        states=tuple(states),
        critic=tuple(map(float, critic.values(observations))),
        exact=tuple(map(float, np.asarray(exact))),
        gamma=config.gamma,
        discount_per=config.discount_per,
    )
