"""Seeds are worlds apart: no two runs, members, copies, rounds or stages share their dice."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest

from lactchain import EnvironmentConfig, RunConfig, make_language_env
from lactchain.baselines.evaluation import FINAL_SEED, evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.settings import PPOConfig, WorldConfig
from lactchain.baselines.training import EVAL_SEED, random_transitions
from lactchain.data.episodes import sampled_episodes
from lactchain.functional.random_streams import derive_seed, env_seeds
from lactchain.search.agents import AgentSpecies
from lactchain.search.settings import EvolutionConfig
from lactchain.stages.rounds import Rounds
from lactchain.stages.search import SearchConfig

RUNS = range(5)


def beginnings(observations):
    """One text for each copy's first observation."""
    return [row.tobytes() for row in observations.reshape(-1, observations.shape[-1])]


def all_differ(groups):
    everything = list(chain.from_iterable(groups))
    return len(set(everything)) == len(everything)


@pytest.mark.parametrize("world", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("num_members", [1, 3])
def test_no_two_copies_of_any_runs_begin_alike(world, num_members):
    runs = [MemberEnvs(world, num_members, 8, seed).observations for seed in RUNS]
    assert all_differ(map(beginnings, runs))


def recorded(seed):
    return beginnings(random_transitions(WorldConfig("CartPole-v1"), 64, seed).observations[:1])


def searched(seed):
    config = SearchConfig(ppo=PPOConfig(num_envs=4), evolution=EvolutionConfig(population_size=5))
    species = AgentSpecies(replace(config, run=RunConfig(seed=seed)))
    return chain.from_iterable(beginnings(envs.observations) for envs in species.envs)


def spoken(seed):
    env = make_language_env(EnvironmentConfig())
    return [episode.seed for episode in sampled_episodes(env, 64, seed)]


@pytest.mark.parametrize("begun", [recorded, searched, spoken])
def test_what_is_recorded_searched_and_spoken_differs_from_run_to_run(begun):
    assert all_differ(map(begun, RUNS))


def test_every_member_is_judged_by_the_same_episodes_and_none_of_them_is_trained_on():
    seen = []

    def act(observations):
        seen.append(observations.copy())
        return np.zeros(observations.shape[:2], dtype=int)

    for seed in (EVAL_SEED, FINAL_SEED):
        evaluate_members(act, "CartPole-v1", 2, 10, seed)
    first, final = seen[0], next(s for s in seen[1:] if not np.array_equal(s[0, 0], seen[0][0, 0]))
    assert np.array_equal(first[0], first[1])
    played = [MemberEnvs("CartPole-v1", 1, 8, seed).observations for seed in RUNS]
    assert all_differ(map(beginnings, (first[0], final[0], *played)))


def test_stages_and_rounds_of_pipelines_draw_apart(tmp_path):
    def seeds(seed):
        run = SimpleNamespace(directory=tmp_path)
        config = SimpleNamespace(run=replace(RunConfig(), seed=seed))
        rounds = SimpleNamespace(config=config, run=run, page=SimpleNamespace(begin=lambda name: 0))
        stages = ("critic", "simpo", "evaluation")
        names = ["warm_start", *(f"round_{n}/{stage}" for n in range(20) for stage in stages)]
        return [Rounds._stage(rounds, name).seed for name in names]

    assert all_differ(seeds(seed) for seed in (*RUNS, 1000, 1001))


def test_seeds_of_copies_are_what_every_world_takes():
    seeds = env_seeds(0, "copy", 10_000)
    assert len(set(seeds)) == len(seeds) and min(seeds) >= 0 and max(seeds) < 2**31
    assert seeds[:8] == env_seeds(0, "copy", 8)
    assert derive_seed(1, 23) != derive_seed(12, 3)
