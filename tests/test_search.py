"""Members can be taken out, revived and mutated without losing what they have learnt."""

from dataclasses import replace

import numpy as np
import pytest

from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.dqn import DQN
from lactchain.baselines.evaluation import Evaluation
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.ppo import PPO
from lactchain.baselines.settings import DDPGConfig, DQNConfig, PPOConfig
from lactchain.config.bounds import tunable_values, tunables
from lactchain.config.settings import RunConfig
from lactchain.search.agents import CERTIFYING_EPISODES, AgentSpecies, learnt_by, revived
from lactchain.search.mutations import Child, draw_config, mutate_tunables
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from lactchain.stages.search import SearchConfig

SMALL = PPOConfig(num_envs=4, num_steps=16, batch_size=32, num_epochs=2, hidden=(8, 6))
OFF_POLICY = {"num_envs": 4, "train_every_env_steps": 8, "hidden": (8, 6), "buffer_size": 64}
SMALL_DQN = DQNConfig(learning_starts=16, **OFF_POLICY)
SMALL_DDPG = DDPGConfig(learning_starts=16, batch_size=16, **OFF_POLICY)
AVERAGED = replace(SMALL_DQN, average_weights=0.9)
AGENTS = [(PPO, SMALL), (DQN, SMALL_DQN), (DQN, AVERAGED), (DDPG, SMALL_DDPG)]
ALL = SpaceConfig()


def trained(config=SMALL, kind=PPO, num_members=1, seed=0):
    world = "Pendulum-v1" if kind is DDPG else "CartPole-v1"
    envs = MemberEnvs(world, num_members, config.num_envs, seed=seed)
    spaces = envs.observation_space, envs.action_space
    population = kind(config, *spaces, seed, num_members)
    for _ in range(3):
        population.advance(envs)
    return population, envs, spaces


@pytest.mark.parametrize(("kind", "config"), AGENTS)
def test_a_member_that_is_revived_is_what_it_was(kind, config):
    agent, _, spaces = trained(config, kind)
    again = revived(kind, Child(config, learnt_by(agent), {}), spaces, seed=1)
    before, after = agent.state_dict(), again.state_dict()
    assert after["num_updates"] == before["num_updates"] > 0
    for name, part in before["parts"].items():
        for key, value in part.items():
            np.testing.assert_array_equal(after["parts"][name][key], value)


def test_no_two_uses_of_episodes_meet(monkeypatch):
    seeds = []

    def evaluate(agent, world, num_episodes, seed):
        seeds.append(range(seed, seed + num_episodes))
        return Evaluation(*np.ones((2, agent.num_members, num_episodes)))

    monkeypatch.setattr("lactchain.search.agents.evaluate_agent", evaluate)
    settings = EvolutionConfig(population_size=2, num_episodes=10)
    for seed in (0, 1):
        species = AgentSpecies(SearchConfig(RunConfig(seed=seed), ppo=SMALL, evolution=settings))
        member = species.newcomer(0, np.random.default_rng(0))
        for generation in (0, 1, 999):
            species.evaluate([member], generation)
        species.certify(member)
        assert len(seeds[-1]) == CERTIFYING_EPISODES and species.num_env_steps == 3 * 10
    assert len({start for episodes in seeds for start in episodes}) == sum(map(len, seeds))


def test_a_tunable_moves_on_its_scale_within_its_range():
    rng, seen = np.random.default_rng(0), set()
    for _ in range(200):
        config, change = mutate_tunables(SMALL, ALL, MutationConfig(tunable_step=0.5), rng)
        ((name, (before, after)),) = change.items()
        tunable = tunables(PPOConfig)[name]
        assert tunable.low <= after <= tunable.high and tunable_values(config)[name] == after
        assert tunable_values(SMALL)[name] == before
        seen.add(name)
    assert seen == set(tunables(PPOConfig))
    for asked in (1, 3, 99):
        change = mutate_tunables(SMALL, ALL, MutationConfig(num_tunables=asked), rng)[1]
        assert len(change) == min(asked, len(seen))
    assert sum(before != after for before, after in change.values()) > 5  # 0 may stay at its bound


def test_only_the_named_tunables_are_searched():
    space = SpaceConfig(tunables=["gamma"], architectures=[[4], [5, 5]], activations=["elu"])
    rng = np.random.default_rng(0)
    drawn = [draw_config(SMALL, space, rng) for _ in range(20)]
    assert {config.hidden for config in drawn} == {(4,), (5, 5)}
    assert {config.activation for config in drawn} == {"elu"}
    assert {config.learning_rate for config in drawn} == {SMALL.learning_rate}
    assert len({config.gamma for config in drawn}) == 20
    assert mutate_tunables(SMALL, space, MutationConfig(), rng)[1].keys() == {"gamma"}


def test_combinations_that_the_config_refuses_are_drawn_again_not_clipped():
    rng = np.random.default_rng(0)
    drawn = [draw_config(SMALL, ALL, rng) for _ in range(50)]  # 64 rows, batches of up to 512
    assert max(config.batch_size for config in drawn) < 64
    space, large = SpaceConfig(tunables=["batch_size"]), MutationConfig(tunable_step=0.3)
    full = replace(SMALL, batch_size=64)
    mutants = [mutate_tunables(full, space, large, rng)[0].batch_size for _ in range(50)]
    assert max(mutants) < 64  # steps upwards are not cut to 64, which would be no step


@pytest.mark.parametrize(("kind", "fields", "said"), [
    (EvolutionConfig, {"population_size": 1}, "population_size: expected at least 2"),
    (EvolutionConfig, {"tournament_size": 9}, "at most population_size = 8"),
    (EvolutionConfig, {"num_episodes": 0}, "num_episodes: expected a number in .1, 10000000"),
    (EvolutionConfig, {"fewest_members": 9}, "fewest_members: .* population_size = 8"),
    (MutationConfig, {"weights": {"crossover": 1.0}}, "weights: expected weights"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(kind, fields, said):
    with pytest.raises(ValueError, match=said):
        kind(**fields)


def test_what_is_taken_out_is_a_copy():
    population, envs, _ = trained()
    weights = learnt_by(population)["parts"]["parameters"]["flat"]
    before = weights.copy()
    population.advance(envs)
    assert np.array_equal(weights, before)
