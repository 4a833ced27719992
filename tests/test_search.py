"""Members can be taken out, joined, grown and mutated without losing what they have learnt."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.dqn import DQN
from lactchain.baselines.evaluation import Evaluation
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Parameters
from lactchain.baselines.ppo import PPO
from lactchain.baselines.settings import DDPGConfig, DQNConfig, PPOConfig
from lactchain.config.settings import RunConfig
from lactchain.config.tunable import tunable_values, tunables
from lactchain.search.agents import CERTIFYING_EPISODES, AgentSpecies, JoinedEnvs, join, take
from lactchain.search.mutations import (
    Child,
    draw_config,
    mutate_architecture,
    mutate_parameters,
    mutate_tunables,
)
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from lactchain.stages.search import SearchConfig

SMALL = PPOConfig(num_envs=4, num_steps=16, batch_size=32, num_epochs=2, hidden=(8, 6))
SMALL_DQN = DQNConfig(
    num_envs=4, train_every_env_steps=8, learning_starts=16, hidden=(8, 6), buffer_size=64
)
SMALL_DDPG = DDPGConfig(
    num_envs=4, train_every_env_steps=8, learning_starts=16, batch_size=16, hidden=(8, 6),
    buffer_size=64,
)  # fmt: skip
AVERAGED = replace(SMALL_DQN, average_weights=0.9)
AGENTS = [(PPO, SMALL), (DQN, SMALL_DQN), (DQN, AVERAGED), (DDPG, SMALL_DDPG)]
GROW, CUT = MutationConfig(growth_share=1.0), MutationConfig(growth_share=0.0)
ALL = SpaceConfig()


def trained(config=SMALL, kind=PPO, num_members=1, seed=0):
    world = "Pendulum-v1" if kind is DDPG else "CartPole-v1"
    envs = MemberEnvs(world, num_members, config.num_envs, seed=seed)
    spaces = envs.observation_space, envs.action_space
    population = kind([config] * num_members, *spaces, seed)
    for _ in range(3):
        population.advance(envs)
    return population, envs, spaces


@pytest.fixture(scope="module")
def member():
    """What a small PPO agent has learnt; to be copied, never changed."""
    return take(trained()[0], 0)


def weights_of(learnt):
    return learnt["parts"]["parameters"]["flat"]


def outputs(kind, config, learnt, spaces):
    """What the networks and targets of a member say about some states, and actions."""
    population = join(kind, [Child(config, learnt, {})], spaces, seed=0)
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((1, 50, *spaces[0].shape)).astype(np.float32))
    actions = torch.from_numpy(rng.uniform(-1, 1, (1, 50, 1)).astype(np.float32))
    found = []
    for part in population.parts.values():
        for name in part.views if isinstance(part, Parameters) else ():
            seen = torch.cat([x, actions], -1) if name == "q0" else x
            found.append(part(name, seen).detach())
    return found


@pytest.mark.parametrize(("kind", "config"), AGENTS)
def test_members_that_are_joined_again_are_what_they_were(kind, config):
    population, _, spaces = trained(config, kind, num_members=3)
    members = [Child(config, take(population, member), {}) for member in (2, 0)]
    again = join(kind, members, spaces, seed=1)
    for name, part in population.state_dict()["parts"].items():
        other = again.state_dict()["parts"][name]
        for key, value in part.items():
            if isinstance(value, torch.Tensor | np.ndarray):
                value = np.asarray(value)[[2, 0]]
            np.testing.assert_array_equal(np.asarray(other[key]), value)


def test_joined_environments_play_what_they_would_play_alone():
    alone = [MemberEnvs("CartPole-v1", 1, 3, seed=seed) for seed in (1, 7)]
    joined = JoinedEnvs([MemberEnvs("CartPole-v1", 1, 3, seed=seed) for seed in (1, 7)])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(2, size=(2, 3))
        step = joined.step(actions)
        for place, envs in enumerate(alone):
            expected = envs.step(actions[place : place + 1])
            for name, values in vars(expected).items():
                np.testing.assert_array_equal(getattr(step, name)[place], values[0])
    for one, other in zip(alone, joined.members, strict=True):
        assert one.episodes == other.episodes and one.episodes


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


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize(("kind", "config"), AGENTS)
def test_growth_leaves_the_function_as_it_is(kind, config, activation):
    config = replace(config, activation=activation)
    population, _, spaces = trained(config, kind)
    learnt, rng, seen = take(population, 0), np.random.default_rng(0), set()
    before = outputs(kind, config, learnt, spaces)
    for _ in range(12):
        mutant = mutate_architecture(Child(config, learnt, {}), GROW, rng)
        assert sum(mutant.config.hidden) > sum(config.hidden)
        seen.add(len(mutant.config.hidden))
        after = outputs(kind, mutant.config, mutant.state, spaces)
        for one, other in zip(before, after, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert seen == ({2} if activation == "tanh" else {2, 3})


def test_growth_keeps_the_moments_and_new_weights_have_none():
    config = replace(SMALL, activation="relu")
    learnt, rng, seen = take(trained(config)[0], 0), np.random.default_rng(0), set()
    for _ in range(8):
        mutant = mutate_architecture(Child(config, learnt, {}), GROW, rng)
        seen.add(len(mutant.config.hidden))
        for key in ("mean", "square"):
            old, new = learnt["parts"]["optimizer"][key], mutant.state["parts"]["optimizer"][key]
            assert new.size > old.size and np.count_nonzero(new) == np.count_nonzero(old)
            assert new.sum() == pytest.approx(old.sum(), rel=1e-5)
        assert mutant.state["parts"]["optimizer"]["steps"] == learnt["parts"]["optimizer"]["steps"]
    assert seen == {2, 3}


def test_shrinking_gives_a_smaller_network_and_leaves_the_parent_alone(member):
    spaces, rng, seen = trained()[2], np.random.default_rng(0), set()
    before = weights_of(member).copy()
    for _ in range(12):
        mutant = mutate_architecture(Child(SMALL, member, {}), CUT, rng)
        seen.add(mutant.config.hidden)
        outputs(PPO, mutant.config, mutant.state, spaces)
    assert seen == {(8,), (6, 6), (8, 5)}
    assert np.array_equal(weights_of(member), before)


def test_moments_are_cut_as_the_weights_they_belong_to_and_those_of_a_merged_layer_are_zero():
    learnt, rng, seen = take(trained()[0], 0), np.random.default_rng(0), set()
    learnt["parts"]["optimizer"]["mean"][:] = weights_of(learnt)
    for _ in range(12):
        mutant = mutate_architecture(Child(SMALL, learnt, {}), CUT, rng)
        weights = weights_of(mutant.state).ravel()
        moments = mutant.state["parts"]["optimizer"]["mean"].ravel()
        merged = len(mutant.config.hidden) < len(SMALL.hidden)
        kept = moments != 0 if merged else slice(None)
        assert np.array_equal(moments[kept], weights[kept])
        assert (np.count_nonzero(moments) < np.count_nonzero(weights)) == merged
        seen.add(merged)
    assert seen == {False, True}


def test_a_network_without_hidden_layers_has_no_architecture_to_change():
    assert mutate_architecture(Child(replace(SMALL, hidden=()), None, {}), GROW, None) is None


def test_noise_is_relative_to_the_weights_and_spares_the_optimiser(member):
    mutant = mutate_parameters(
        Child(SMALL, member, {}), MutationConfig(noise=0.1), np.random.default_rng(0)
    )
    old, new = weights_of(member), weights_of(mutant.state)
    assert 0.05 < np.std(new - old) / np.std(old) < 0.2
    for key, moments in member["parts"]["optimizer"].items():
        assert np.array_equal(mutant.state["parts"]["optimizer"][key], moments)


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


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (EvolutionConfig, {"population_size": 1}, "population_size: expected at least 2"),
        (EvolutionConfig, {"tournament_size": 9}, "at most population_size = 8"),
        (EvolutionConfig, {"num_episodes": 0}, "num_episodes: expected a number in .1, 10000000"),
        (EvolutionConfig, {"fewest_members": 9}, "fewest_members: .* population_size = 8"),
        (MutationConfig, {"weights": {"crossover": 1.0}}, "weights: expected weights"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, fields, said):
    with pytest.raises(ValueError, match=said):
        kind(**fields)


def test_what_is_taken_out_is_a_copy():
    population, envs, _ = trained()
    learnt = take(population, 0)
    before = weights_of(learnt).copy()
    population.advance(envs)
    assert np.array_equal(weights_of(learnt), before)
