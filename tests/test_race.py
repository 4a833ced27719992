"""The race is fair and exact: running times by hand, the same moments, nothing played twice.

The problem is CartPole cut at 60 steps, for networks of eight units.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from script_setups import BEHAVIOR, GRID, PREFERENCES, SHAPE, TRAINING

from lactchain.baselines.settings import PPOConfig, WorldConfig
from lactchain.search.mutations import check_tunables
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from lactchain.storage.files import read_json_lines

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import race  # noqa: E402
from search_race import agents, contenders, language, trials  # noqa: E402

TINY = agents.AgentProblem(
    name="tiny",
    title="Tiny",
    subject=PPOConfig(num_envs=4, num_steps=16, batch_size=32, num_epochs=2, hidden=(8,)),
    world=WorldConfig("CartPole-v1", {"max_episode_steps": 60}),
    space=SpaceConfig(["learning_rate", "gamma"]),
    evolution=EvolutionConfig(
        population_size=3,
        steps_per_generation=64,
        num_episodes=2,
        elite="generation",
        mutation=MutationConfig(weights={"hyper": 1.0}),
    ),
    target=1e9,
    budget=2_500,
    moment=100,
    trial_steps=512,
    report_steps=128,
    num_seeds=2,
)
OURS = ["evolution", "random", "halving", "hyperband", "tpe", "tpe_hyperband"]


def lines(folder, name="runs"):
    return read_json_lines(folder / "tiny" / f"{name}.jsonl")


def outcomes(folder):
    """The runs but for how long they took."""
    return sorted(json.dumps(line | {"cpu_seconds": 0}) for line in lines(folder))


def run_race(folder, problem=TINY, methods=("random", "evolution"), seeds=None):
    race.race(problem, list(methods), seeds, folder, deadline=math.inf)


class CutAt:
    """Lets the race be out of time at the training of that number, and counts the steps."""

    def __init__(self, monkeypatch, call=None):
        self.call, self.calls, self.steps = call, 0, 0
        original = agents.AgentNursery.train

        def train(nursery, agents, num_steps):
            self.calls += 1
            if self.calls == self.call:
                raise trials.OutOfTime
            played = original(nursery, agents, num_steps)
            self.steps += sum(played)
            return played

        monkeypatch.setattr(agents.AgentNursery, "train", train)


# --- figures --------------------------------------------------------------------------------------


def test_the_running_time_is_all_steps_of_all_runs_over_the_certified_ones():
    assert race.running_time([(100, True), (300, False), (200, True)]) == 300.0
    assert race.running_time([(100, False)]) == math.inf


def test_the_interval_of_a_running_time_is_that_of_the_seeds_drawn_again():
    assert race.time_interval([(70, True)]) == (70.0, 70.0)
    # Two seeds: 10 or 30 a quarter of the time each, 20 in between.
    assert race.time_interval([(10, True), (30, True)]) == (10.0, 30.0)
    # Both certified: 10. One: 10 + 30 steps over one. None: never.
    assert race.time_interval([(10, True), (30, False)]) == (10.0, math.inf)
    certified = [(10, True)] * 99 + [(1000, False)]
    low, high = race.time_interval(certified)
    # The failures in a sample of 100 are about Poisson of mean 1: none to three in 95 %.
    assert (low, high) == (10.0, pytest.approx((97 * 10 + 3 * 1000) / 97))


def test_a_quotient_draws_the_seeds_of_both_together():
    theirs = {0: (100, True), 1: (5000, True), 2: (40, True)}
    ours = {seed: (steps / 2, True) for seed, (steps, _) in theirs.items()}
    assert race.ratio(ours, theirs) == (0.5, 0.5, 0.5)
    failing = ours | {1: (2500, False)}  # (50 + 2500 + 20) / 2 over 5140 / 3
    assert race.ratio(failing, theirs)[0] == pytest.approx(1285 / (5140 / 3))
    assert race.ratio({**ours, 7: (1, True)}, theirs)[0] == 0.5  # the seeds of both
    never = dict.fromkeys(theirs, (100, False))
    assert race.ratio(never, theirs)[0] == math.inf and race.ratio(ours, never)[0] == 0.0


def test_the_table_says_who_was_certified_and_how_fast_beside_random_search():
    runs = [
        race.Outcome("tiny", name, seed, steps, certified, [], 1.0)
        for name, steps, certified in (("random", 400, True), ("evolution", 300, True))
        for seed in (0, 1)
    ]
    runs.append(race.Outcome("tiny", "halving", 0, 900, False, [], 1.0))
    assert race.table(runs)[2:] == [
        "| our evolution | 2 of 2 | 300 | 300 – 300 | 0.75 (0.75 to 0.75) | 300 |",
        "| random search | 2 of 2 | 400 | 400 – 400 |  | 400 |",
        "| successive halving | 0 of 1 | never | never – never | inf (inf to inf) | never |",
    ]


# --- the same terms for all -----------------------------------------------------------------------


def test_a_clock_stops_at_the_moment_after_the_judgement():
    clock = contenders.Clock(moment=100, budget=1_000)
    for steps, fitness, certified in ((130, 5.0, False), (40, 3.0, False), (131, 9.0, True)):
        clock.hear(steps, fitness, certified)
    assert (clock.total, clock.solved, clock.steps) == (301, 400, 400)
    assert clock.points == [[130, 5.0], [301, 9.0]] and clock.is_over


def test_what_is_certified_beyond_the_budget_is_not_certified():
    late = contenders.Clock(moment=100, budget=250)
    late.hear(210, 9.0, True)  # the next moment is 300
    assert late.solved is None and not late.is_over
    late.hear(60, 9.0, True)
    assert late.is_over and late.solved is None and late.steps == 250


@pytest.mark.parametrize("problem", race.PROBLEMS.values(), ids=race.PROBLEMS)
def test_nobody_is_asked_more_than_once_between_two_moments(problem):
    settings = problem.evolution
    assert problem.report_steps >= problem.moment
    assert settings.fewest_members * settings.steps_per_generation >= problem.moment
    check_tunables(problem.drawn(0, 0), problem.space.tunables)


@pytest.mark.parametrize("block", [1, 4])
def test_every_contender_is_asked_at_the_same_moments(tmp_path, block):
    pytest.importorskip("optuna")
    good = replace(TINY, target=20.0, block=block, num_seeds=3)
    run_race(tmp_path, good, OURS)
    runs = lines(tmp_path)
    assert len(runs) == 3 * len(OURS) and any(line["certified"] for line in runs)
    for line in runs:
        assert line["steps"] % 100 == 0 if line["certified"] else line["steps"] == good.budget
        assert all(steps <= line["steps"] for steps, _ in line["points"]) or not line["certified"]


def test_random_trials_are_the_same_for_all_who_begin_with_them(tmp_path):
    pytest.importorskip("optuna")
    drawn = [TINY.drawn(5, number) for number in range(4)]
    assert len({config.learning_rate for config in drawn}) == 4
    makers = [
        contenders.Drawn(TINY, 5),
        contenders.Pruned(TINY, 5, "halving"),
        contenders.TPE(TINY, 5),
    ]
    for sampler in makers:
        for number, config in enumerate(drawn):
            assert sampler.ask(number) == config
            for place in range(1, 5):
                if sampler.hear(place, float(-number), place == 4):
                    break


def test_samplers_hear_of_ends_and_propose_their_own_after_the_draws():
    pytest.importorskip("optuna")
    sampler = contenders.TPE(agents.CARTPOLE, 3)
    for number in range(contenders.NUM_DRAWN + 2):
        config, drawn = sampler.ask(number), agents.CARTPOLE.drawn(3, number)
        same = trials.searched_values(agents.CARTPOLE, config) == trials.searched_values(
            agents.CARTPOLE, drawn
        )
        assert same == (number < contenders.NUM_DRAWN)
        assert sampler.hear(1, float(number), is_last=True)
    heard = [trial.value for trial in sampler.study.trials if trial.value is not None]
    assert heard == [float(number) for number in range(contenders.NUM_DRAWN + 2)]


def test_halving_gives_up_all_but_the_best_third_at_a_rung():
    pytest.importorskip("optuna")
    sampler = contenders.Pruned(TINY, 0, "halving")
    over = []
    for number, fitness in enumerate((5.0, 4.0, 3.0, 9.0, 1.0)):
        sampler.ask(number)
        over.append(sampler.hear(1, fitness, is_last=False))
    assert over == [False, True, True, False, True]


# --- trials ---------------------------------------------------------------------------------------


def test_trials_that_others_have_played_are_not_played_again(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    run_race(tmp_path, methods=["random"], seeds=[0])
    known = lines(tmp_path, "trials")
    whole = {line["number"] for line in known if line["is_over"]}
    counted = CutAt(monkeypatch)
    run_race(tmp_path, methods=["halving"], seeds=[0])
    added = lines(tmp_path, "trials")[len(known) :]
    assert len(whole) >= 3 and not whole & {line["number"] for line in added}
    assert counted.calls == sum(len(line["reports"]) for line in added) > 0


def test_members_of_one_population_play_as_many_steps_as_trials_alone(tmp_path):
    kept = {}
    for block in (1, 4):
        (tmp_path / str(block)).mkdir()
        known = trials.Trials(replace(TINY, block=block), tmp_path / str(block))
        kept[block] = [list(known.reports(0, number, TINY.drawn(0, number))) for number in range(4)]
        assert len(known.known) == 4
    for alone, together in zip(kept[1], kept[4], strict=True):
        assert [report.trained for report in alone] == [128] * 4
        assert [report.trained for report in together] == [128] * 4
        assert all(report.judged == 2 * report.fitness for report in alone + together)


def test_a_trial_ends_with_its_first_certified_judgement(tmp_path):
    known = trials.Trials(replace(TINY, target=0.0), tmp_path)
    [report] = known.reports(0, 0, TINY.drawn(0, 0))
    assert report.certified
    again = trials.Trials(replace(TINY, target=0.0), tmp_path)
    assert list(again.reports(0, 0, TINY.drawn(0, 0))) == [report]


def test_a_trial_that_was_given_up_goes_on_as_if_it_had_not_been(tmp_path):
    config = TINY.drawn(0, 0)
    (tmp_path / "whole").mkdir()
    whole = list(trials.Trials(TINY, tmp_path / "whole").reports(0, 0, config))
    known = trials.Trials(TINY, tmp_path)
    part = known.reports(0, 0, config)
    assert [next(part), next(part)] == whole[:2]
    part.close()
    again = trials.Trials(TINY, tmp_path)
    assert list(again.reports(0, 0, config)) == whole
    assert [len(line["reports"]) for line in read_json_lines(tmp_path / "trials.jsonl")] == [2, 4]


# --- a race goes on -------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "block"), [(2, 1), (6, 4)])
def test_a_race_goes_on_where_it_was(tmp_path, monkeypatch, call, block):
    problem = replace(TINY, block=block)
    run_race(tmp_path / "whole", problem)
    with monkeypatch.context() as context:
        CutAt(context, call)
        run_race(tmp_path / "cut", problem)
    assert len(lines(tmp_path / "cut")) < len(lines(tmp_path / "whole")) == 4
    kept = sum(len(line["reports"]) for line in lines(tmp_path / "cut", "trials"))
    assert kept >= (call - 1 if block == 1 else 4 * ((call - 1) // 4 * 4))
    run_race(tmp_path / "cut", problem)
    assert outcomes(tmp_path / "cut") == outcomes(tmp_path / "whole")
    counted = CutAt(monkeypatch)
    run_race(tmp_path / "cut", problem)
    assert counted.calls == 0


def test_an_evolution_goes_on_after_the_generation_in_which_its_time_was_over(
    tmp_path, monkeypatch
):
    known, generations = trials.Trials(TINY, tmp_path), []
    whole = contenders.evolve(TINY, 0, known)
    original = contenders.Evolution.advance

    def advance(evolution):
        generations.append(evolution.number)
        if len(generations) == 3:
            known.deadline = 0.0
        return original(evolution)

    monkeypatch.setattr(contenders.Evolution, "advance", advance)
    with pytest.raises(trials.OutOfTime):
        contenders.evolve(TINY, 0, known)
    assert generations == [0, 1, 2]
    known.deadline = math.inf
    assert contenders.evolve(TINY, 0, known) == whole
    assert generations == list(range(len(generations))) and len(generations) > 4
    assert not list(tmp_path.glob("evolution-*"))


def test_a_line_that_a_crash_has_cut_is_played_again(tmp_path):
    run_race(tmp_path, methods=["random"], seeds=[0])
    path = tmp_path / "tiny" / "trials.jsonl"
    whole = lines(tmp_path, "trials")
    path.write_bytes(path.read_bytes()[:-30])
    (tmp_path / "tiny" / "runs.jsonl").unlink()
    run_race(tmp_path, methods=["random"], seeds=[0])
    again = lines(tmp_path, "trials")
    assert [line["reports"] for line in again] == [line["reports"] for line in whole]


def test_a_race_out_of_time_plays_nothing_more(tmp_path):
    race.race(TINY, ["random", "evolution"], [0], tmp_path, deadline=0.0)
    assert not lines(tmp_path) and not lines(tmp_path, "trials")


@pytest.mark.slow
def test_language_actors_race_and_go_on_where_they_were(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    training = replace(TRAINING, max_steps=2, save_every_updates=0)
    longer = replace(training, max_steps=60, learning_rate=1e-2)  # until it answers with chains
    subject = replace(
        race.LANGUAGE.subject,
        environment=GRID,
        actor=replace(race.LANGUAGE.subject.actor, max_new_tokens=8),
        preferences=replace(PREFERENCES, num_states=32),
        training=training,
    )
    tiny = replace(
        race.LANGUAGE,
        name="tiny",
        subject=subject,
        shape=SHAPE,
        cloning=replace(race.LANGUAGE.cloning, behavior=BEHAVIOR, training=longer),
        target=2.0,
        budget=1_500,
        trial_steps=256,
        report_steps=128,
        evolution=replace(race.LANGUAGE.evolution, population_size=3),
    )
    methods = ["random", "halving", "evolution"]
    run_race(tmp_path / "whole", tiny, methods, seeds=[0])
    original, calls = language.LanguageNursery.train, []

    def train(nursery, agents, num_steps):
        calls.append(1)
        if len(calls) == 2:
            raise trials.OutOfTime
        return original(nursery, agents, num_steps)

    with monkeypatch.context() as context:
        context.setattr(language.LanguageNursery, "train", train)
        run_race(tmp_path / "cut", tiny, methods, seeds=[0])
    assert not lines(tmp_path / "cut") and len(lines(tmp_path / "cut", "trials")) == 1
    run_race(tmp_path / "cut", tiny, methods, seeds=[0])
    assert outcomes(tmp_path / "cut") == outcomes(tmp_path / "whole")
    searched = set(tiny.space.tunables)
    assert all(line["config"].keys() == searched for line in lines(tmp_path / "cut", "trials"))
    written = (tmp_path / "whole/tiny/clone/config.yaml").read_text()
    assert "size: 2" in written  # the clone comes from the world that it will play


# --- pictures -------------------------------------------------------------------------------------


def test_the_picture_shows_shares_of_seeds(tmp_path):
    run_race(tmp_path, replace(TINY, target=20.0))
    runs = [race.Outcome(**line) for line in lines(tmp_path)]
    drawn = race.chart(TINY, runs)
    assert drawn.startswith("<svg") and "our evolution" in drawn
    assert np.isfinite([run.cpu_seconds for run in runs]).all()
