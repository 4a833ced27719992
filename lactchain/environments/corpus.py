"""What an environment says and hears: texts that a tokenizer can learn from."""

from __future__ import annotations

from collections.abc import Iterator

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RandomChains


def sample_texts(env: LanguageEnv, num_episodes: int = 200, seed: int = 0) -> Iterator[str]:
    """Observations and answers of episodes played with random chains.

    Each episode begins with an answer that is no chain, so that what the environment says to that
    is among the texts.

    Args:
        seed: of the first episode; the others count on from it.
    """
    policy = RandomChains(env.grammar)
    for episode in range(seed, seed + num_episodes):
        observation, _ = env.reset(seed=episode)
        seeds = range(episode * env.max_chains, (episode + 1) * env.max_chains)
        for answer in ["", *(action.text for action in policy.act([""] * len(seeds), seeds))]:
            yield from (observation, answer)
            observation, _, terminated, truncated, _ = env.step(answer)
            if terminated or truncated:
                break
        yield observation
