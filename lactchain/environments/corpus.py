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
        answers = policy.act([""] * env.max_chains, range(env.max_chains))
        over = False
        texts = iter(["", *(answer.text for answer in answers)])
        while not over:
            answer = next(texts)
            yield from (observation, answer)
            observation, _, terminated, truncated, _ = env.step(answer)
            over = terminated or truncated
        yield observation
