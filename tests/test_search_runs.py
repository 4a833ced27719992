"""Searches as run folders: replayed from the seed, cut anywhere, returning what was judged."""

import itertools
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import test_search

from lactchain import ConfigError, Interrupted, RunConfig
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.training import read_agent
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.run import read_metrics
from lactchain.search import agents, evolution
from lactchain.search.evolution import Evolution
from lactchain.search.settings import EvolutionConfig, SpaceConfig
from lactchain.stages.search import SearchConfig
from lactchain.stages.search import main as search
from lactchain.storage.files import read_json_lines

SHORT = WorldConfig("CartPole-v1", {"max_episode_steps": 60})
PPO = replace(test_search.SMALL, hidden=(8,))
DQN = replace(test_search.SMALL_DQN, learning_starts=32, buffer_size=200, hidden=(8,))
SMALL = EvolutionConfig(
    population_size=3, num_generations=4, steps_per_generation=64, num_episodes=2
)
SPACE = SpaceConfig(architectures=[[4], [6, 6]], activations=["tanh", "relu"])


def config(run_dir, **changes):
    run = RunConfig(run_dir=str(run_dir), keep_checkpoints=True)
    return replace(SearchConfig(run, SHORT, ppo=PPO, space=SPACE, evolution=SMALL), **changes)


def run(run_dir, **changes):
    return search(config(run_dir, **changes))


def texts(run_dir, *names):
    return [(Path(run_dir) / name).read_text() for name in names]


def cut(monkeypatch, run_dir, owner, name, call, **changes):
    """A search that ends in the call of that number of a method, as by a kill."""
    original, calls = getattr(owner, name), itertools.count(1)

    def wrapped(*args, **kwargs):
        if next(calls) == call:
            raise Interrupted(signal.SIGTERM, "cut")
        return original(*args, **kwargs)

    with monkeypatch.context() as context, pytest.raises(Interrupted):
        context.setattr(owner, name, wrapped)
        run(run_dir, **changes)


@pytest.fixture(scope="module", params=[{"ppo": PPO}, {"ppo": None, "dqn": DQN}])
def uncut(request, tmp_path_factory):
    """The changes of a search of each kind of agent, its folder and what it returned."""
    folder = tmp_path_factory.mktemp("uncut") / "run"
    return request.param, folder, run(folder, **request.param)


@pytest.mark.parametrize("where", [("train", 3), ("evaluate", 2), ("evaluate", 4)])
def test_a_search_that_was_cut_in_a_generation_goes_on_exactly(tmp_path, monkeypatch, uncut, where):
    subject, folder, whole = uncut
    cut(monkeypatch, tmp_path / "cut", agents.AgentSpecies, *where, **subject)
    assert run(tmp_path / "cut", **subject) == whole and whole["num_generations"] == 4
    names = ("lineage.jsonl", "best/state.json", "checkpoints/checkpoint-4/state.json")
    assert texts(folder, *names) == texts(tmp_path / "cut", *names)
    steps = [record["step"] for record in read_metrics(tmp_path / "cut")]
    assert steps == sorted(set(steps)) and len(steps) == 4


@pytest.mark.parametrize(
    "damage",
    [None, b'{"generation": 0, "id"', b"{}\n", b'{"search/fitness": 2.0, "step": 1}\n'],  # metrics
)
def test_a_lineage_that_differs_from_the_checkpoint_is_mended(tmp_path, monkeypatch, uncut, damage):
    """The file is not what a search goes on from: the checkpoint is."""
    subject, folder, whole = uncut
    cut(monkeypatch, tmp_path / "cut", evolution, "save_checkpoint", 3, **subject)
    lineage = tmp_path / "cut" / "lineage.jsonl"
    assert len(read_json_lines(lineage)) == 9  # a generation is noted that was not saved
    if damage:
        lineage.write_bytes(damage)
    assert run(tmp_path / "cut", **subject) == whole
    assert texts(folder, "lineage.jsonl") == [lineage.read_text()]


def test_the_returned_agent_is_the_one_that_was_judged(uncut):
    _, folder, summary = uncut
    lines = read_json_lines(folder / "lineage.jsonl")
    first = next(line for line in lines if line["id"] == summary["best/id"])
    agent = read_agent(folder / "best")
    greedy, means = partial(agent.act, greedy=True), []
    for generation in range(first["generation"], SMALL.num_generations):
        seed = derive_seed(0, "selecting", generation)
        played = evaluate_members(greedy, SHORT.id, 1, SMALL.num_episodes, seed, **SHORT.kwargs)
        means.append(played.returns.mean())
    assert first["fitness"] == means[0]
    assert summary["best/fitness"] == pytest.approx(np.mean(means))
    assert agent.config.learning_rate == summary["best/tunables"]["learning_rate"]


def test_every_step_of_training_and_of_selecting_evaluations_is_counted(tmp_path, monkeypatch):
    played, original = [], agents.evaluate_agent

    def count(*args, **kwargs):
        evaluation = original(*args, **kwargs)
        played.append(int(evaluation.lengths.sum()))
        return evaluation

    monkeypatch.setattr(agents, "evaluate_agent", count)
    summary = run(tmp_path / "run")
    certifying = played.pop()  # the last one, of the returned member
    assert certifying >= agents.CERTIFYING_EPISODES
    assert summary["num_env_steps"] == 3 * 4 * 64 + sum(played)


def test_the_lineage_says_who_came_from_whom_with_what_gain(uncut):
    _, folder, summary = uncut
    by_id = {line["id"]: line for line in read_json_lines(folder / "lineage.jsonl")}
    assert list(by_id) == list(range(12))
    for line in by_id.values():
        if line["generation"] == 0:
            assert (line["mutation"], line["parent"], line["gain"]) == ("newcomer", None, None)
        else:
            assert line["gain"] == line["fitness"] - line["parent_fitness"]
            assert by_id[line["parent"]]["generation"] < line["generation"]
    for generation in (1, 2, 3):
        elite = by_id[3 * generation]
        assert elite["mutation"] == "elite" and elite["change"] == {}
    assert by_id[summary["best/id"]]["fitness"] is not None


def test_a_stop_file_ends_a_search_after_a_generation(tmp_path, monkeypatch, capsys):
    original = evolution.record_generation

    def record(*args):
        (tmp_path / "run" / "stop").touch()
        return original(*args)

    monkeypatch.setattr(evolution, "record_generation", record)
    assert run(tmp_path / "run")["num_generations"] == 1
    head, row, *_ = capsys.readouterr().out.splitlines()  # people see what came of it
    assert head.split() == ["generation", "fitness", "best", "steps"]
    assert row.split()[0] == "0" and len(row.split()) == 4


class Sums:
    """A species whose members are numbers; as a default a member's fitness is its number."""

    num_env_steps = 0

    def __init__(self, fitness=lambda m, _: np.nan if m.state < 0 else m.state, worth=None):
        self.fitness, self.worth = fitness, worth

    def newcomer(self, place, rng):
        return None, float(place), {}

    def keep(self, members):
        pass

    def train(self, members, generation):
        return [member.state - 0.5 for member in members]

    def evaluate(self, members, generation):
        return [self.fitness(member, generation) for member in members]

    def certify(self, member):
        return member.state if self.worth is None else self.worth

    def mutate(self, kind, parent, rng):
        return None, parent.state + rng.choice([-1.0, 1.0]), {"number": [parent.state, 0]}


@pytest.mark.parametrize(("elite", "tournament_size"), [("champion", 1), ("generation", 2)])
def test_the_champion_is_kept_and_it_or_the_fittest_of_a_generation_goes_on(elite, tournament_size):
    """Though training spoils it."""
    how = {"elite": elite, "tournament_size": tournament_size}
    evolution, best = Evolution(Sums(), replace(SMALL, population_size=4, **how), seed=3), -np.inf
    for members in evolution:
        fittest = max(members, key=lambda m: np.nan_to_num(m.fitness, nan=-9.0))
        best = max(best, fittest.state)
        assert evolution.champion.fitness == evolution.champion.state == best
        first = evolution.members[0]
        assert first.mutation == "elite" and first.change == {}
        if elite == "champion":
            assert first.state == best
            continue
        assert (first.parent, first.state) == (fittest.id, fittest.state)
        ids = {member.id for member in members}
        assert {member.parent for member in evolution.members} <= ids  # the champion is no rival


def champions(evolution):
    """The champion after each generation."""
    return [evolution.champion for _ in evolution]


def test_a_champion_by_luck_is_found_out():
    dice = Sums(lambda m, generation: 9.0 if generation == 0 and m.state < 0 else m.state)
    evolution = Evolution(dice, replace(SMALL, population_size=4, num_generations=9), seed=3)
    first, second, *_, last = champions(evolution)
    assert first.state == -0.5 and first.fitness == 9.0
    assert second.fitness == (9.0 - 0.5) / 2 and second.num_evaluations == 2
    assert last.state > 0 and last.id != first.id


def test_members_that_diverged_win_no_tournament_with_a_sound_one():
    evolution = Evolution(Sums(), replace(SMALL, population_size=2, tournament_size=2))
    members = evolution.advance()
    assert np.isnan(members[0].fitness)  # 0 − 0.5
    assert {member.parent for member in evolution.members} == {1}


@pytest.mark.parametrize(("worth", "target", "count"), [(None, 2.5, 1), (1.0, 1.5, 4)])
def test_a_target_ends_the_search_if_fresh_episodes_confirm_it(worth, target, count):
    evolution = Evolution(Sums(worth=worth), replace(SMALL, population_size=4), 3, target)
    assert len(list(evolution)) == count and evolution.champion.fitness >= target
    assert evolution.certified == (None if worth else 2.5)


def test_a_champion_whose_later_evaluations_meet_the_target_is_certified():
    modest = Sums(lambda m, n: 2.0 if n == 0 else 4.0 if m.fitness else 0.0, worth=3.0)
    evolution = Evolution(modest, replace(SMALL, num_generations=9), seed=3, target=3.0)
    first, second = champions(evolution)
    assert evolution.certified == 3.0 and second.id == first.id


def sizes(evolution):
    return [len(members) for members in evolution]


def test_a_population_shrinks_until_the_fewest_are_left():
    settings = replace(SMALL, population_size=8, num_generations=5)
    halving = replace(settings, survivors=0.5, fewest_members=2)
    assert sizes(Evolution(Sums(), halving)) == [8, 4, 2, 2, 2]
    alone = replace(halving, fewest_members=1, tournament_size=3)
    evolution = Evolution(Sums(), alone)
    assert sizes(evolution) == [8, 4, 2, 1, 1] and evolution.members[0].mutation == "elite"
    assert sizes(Evolution(Sums(), replace(settings, survivors=0.4))) == [8, 3, 2, 2, 2]
    assert sizes(Evolution(Sums(), settings)) == [8] * 5


def test_a_population_without_a_new_champion_gives_way_to_newcomers():
    fading = Sums(lambda m, generation: 9.0 - generation)  # none is fitter than the first ones
    settings = replace(SMALL, num_generations=9, patience=3, survivors=0.5, judge_champion=False)
    evolution = Evolution(fading, settings, seed=3)
    generations = list(evolution)
    whole = [{m.mutation for m in members} == {"newcomer"} for members in generations]
    assert [n for n, begins in enumerate(whole) if begins] == [0, 4, 7]
    assert sizes(generations) == [3, 2, 2, 2, 3, 2, 2, 3, 2]
    ids = [member.id for members in generations for member in members]
    assert len(set(ids)) == len(ids)
    assert evolution.champion.id in (0, 1, 2)  # what was found is not lost


@pytest.mark.parametrize(("again", "expected"), [(True, [3, 4, 4, 4]), (False, [3] * 4)])
def test_a_champion_that_is_not_judged_again_costs_no_episodes(again, expected):
    judged = [0] * 4

    def count(member, generation):
        judged[generation] += 1
        return member.state

    list(Evolution(Sums(count), replace(SMALL, judge_champion=again), seed=3))
    assert judged == expected


def test_a_shrinking_search_that_was_cut_goes_on_exactly(tmp_path, monkeypatch):
    settings = replace(SMALL, num_generations=7, survivors=0.5, fewest_members=1, patience=2)
    settings = replace(settings, steps_per_generation=64, num_episodes=1)
    whole = run(tmp_path / "whole", evolution=settings)
    cut(monkeypatch, tmp_path / "cut", agents.AgentSpecies, "train", 5, evolution=settings)
    assert run(tmp_path / "cut", evolution=settings) == whole
    assert texts(tmp_path / "whole", "lineage.jsonl") == texts(tmp_path / "cut", "lineage.jsonl")


def test_a_tunable_out_of_its_bounds_is_refused_where_it_is_searched(tmp_path):
    low = replace(PPO, gamma=0.5)
    with pytest.raises(ConfigError, match=r"gamma: expected a number in \[0.9, 0.9999\], got 0.5"):
        run(tmp_path / "run", ppo=low)
    with pytest.raises(ConfigError, match="no tunable 'depth'"):
        run(tmp_path / "run2", space=SpaceConfig(tunables=["depth"]))
    summary = run(tmp_path / "run", ppo=low, space=SpaceConfig(tunables=["learning_rate"]))
    assert summary["best/tunables"]["gamma"] == 0.5


@pytest.mark.parametrize("changes", [{"ppo": None}, {"dqn": DQN}])
def test_one_thing_is_searched_at_a_time(tmp_path, changes):
    with pytest.raises(ValueError, match="exactly one of ppo, dqn, ddpg, language"):
        config(tmp_path, **changes)


def test_a_search_on_several_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="single process, got 2; start it without a launcher"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
