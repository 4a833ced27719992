"""The exact values of a language policy are what it earns on average when it plays."""

from dataclasses import replace

import numpy as np
import pytest
from script_setups import GRID, config_of, run_here

from lactchain.config.settings import ActorConfig, CriticConfig
from lactchain.data.episodes import Episode
from lactchain.data.evaluations import read_values
from lactchain.data.exact_values import critic_against_exact, exact_policy
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.functional.random_streams import derive_seed
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.runs.run import Run
from lactchain.stages.train_critic import measure_values

NUM_EPISODES = 150


@pytest.fixture(scope="module")
def actor(weights):
    config = ActorConfig(str(weights / "actor"), max_new_tokens=8, decoding="constrained")
    return LanguageActor.from_config(config, make_language_env(GRID).grammar)


@pytest.mark.parametrize("discount_per", ["action", "chain"])
def test_exact_values_agree_with_play(actor, weights, discount_per, tmp_path):
    """Within three standard errors of the mean return of 150 episodes, in three states."""
    world = {"size": 2, "reward": "founding", "max_steps": 1000}
    config = replace(GRID, kwargs=world, max_chains=500, chain_cost=0.5)
    rollouts, numbers = Rollouts(config, num_envs=3 * NUM_EPISODES), (0, 22, 47)
    critic = EmbeddingCritic.from_config(
        CriticConfig(str(weights / "encoder"), gamma=0.9, discount_per=discount_per)
    )
    policy = exact_policy(actor, rollouts.env, tmp_path)
    values = critic_against_exact(critic, policy, rollouts.env)
    assert len(values.states) == 48 and values.critic == (0.0,) * 48
    episodes = [
        Episode(derive_seed(number, "play", i), values.states[number])
        for number in numbers
        for i in range(NUM_EPISODES)
    ]
    played = rollouts.play(actor, episodes)
    assert all(t.terminated for t in played)
    returns = np.reshape([t.returns(0.9, discount_per)[0] for t in played], (3, NUM_EPISODES))
    for number, earned in zip(numbers, returns, strict=True):
        error = np.std(earned) / np.sqrt(NUM_EPISODES)
        assert values.exact[number] == pytest.approx(np.mean(earned), abs=3 * error)


def test_the_critic_is_measured_against_the_policy_that_collected_its_data(weights, tmp_path):
    config = config_of("train_critic", weights, tmp_path / "run")
    summary = run_here("train_critic", config)
    values = read_values(tmp_path / "run" / "values.json")
    assert summary["critic_r2"] == pytest.approx(values.r2)
    assert summary["critic_rmse"] == pytest.approx(values.rmse)
    critic = EmbeddingCritic.load(tmp_path / "run" / "critic")
    env = make_language_env(GRID)
    texts = [env.reset(options={"state": state})[0] for state in values.states]
    np.testing.assert_allclose(values.critic, critic.values(texts), atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"compare_with_exact": False},
        {"actor": {"decoding": "free", "max_new_tokens": 4}},
        {"critic": {"mode": "action_value"}},
        {"environment": {"max_chain_length": 12}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_values_cannot_be_computed_none_are_claimed(weights, tmp_path, changes):
    config = config_of("train_critic", weights, tmp_path / "run")
    for name, change in changes.items():
        value = replace(getattr(config, name), **change) if isinstance(change, dict) else change
        config = replace(config, **{name: value})
    with Run.open(tmp_path / "run", config) as run:
        assert measure_values(config, run) == {}
    assert not (tmp_path / "run" / "values.json").exists()
