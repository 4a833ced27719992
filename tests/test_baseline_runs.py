"""Runs of the classic agents: what they leave, and that an interruption changes no bit of it."""

import hashlib
import json
import random
import signal
import sys
from dataclasses import replace
from functools import cache, partial
from itertools import count

import gymnasium as gym
import numpy as np
import pytest

from lactchain import RunConfig, train_agent
from lactchain.baselines import evaluation, settings, training
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.state_files import ARRAYS, VALUES
from lactchain.baselines.training import random_transitions, read_agent
from lactchain.baselines.transitions import write_transitions
from lactchain.errors import ConfigError, DataError, EnvironmentFault, Interrupted, NonFiniteError
from lactchain.runs.run import read_metrics
from lactchain_extras.explorer.report import write_report
from lactchain_extras.foreign_agents import sb3_act

LOOP = settings.LoopConfig(
    num_members=2, total_steps=480, log_every_steps=64, eval_every_steps=160, num_eval_episodes=3,
    save_every_steps=96,
)  # fmt: skip
SHORT = settings.WorldConfig("CartPole-v1", {"max_episode_steps": 40})
LAKE = settings.WorldConfig("FrozenLake-v1")  # a loop of single copies, with dice
PENDULUM = settings.WorldConfig("Pendulum-v1", {"max_episode_steps": 30})
TINY = {"hidden": (8,), "batch_size": 16}
FEW = TINY | {"num_envs": 2, "learning_starts": 64}
AGENTS = {
    "ppo": settings.PPOConfig(**TINY, num_envs=2, num_steps=16, num_epochs=2),
    "dqn": settings.DQNConfig(**FEW, buffer_size=100, average_weights=0.9),
    "ddpg": settings.DDPGConfig(**FEW, train_every_env_steps=8, rescale_observations=True),
    "cql": settings.CQLConfig(**TINY, num_updates=16),
}
CONFIGS = {
    "ppo": settings.TrainPPOConfig(environment=SHORT, agent=AGENTS["ppo"], loop=LOOP),
    "dqn": settings.TrainDQNConfig(environment=LAKE, agent=AGENTS["dqn"], loop=LOOP),
    "ddpg": settings.TrainDDPGConfig(environment=PENDULUM, agent=AGENTS["ddpg"], loop=LOOP),
    "cql": settings.TrainCQLConfig(
        environment=SHORT, agent=AGENTS["cql"], loop=LOOP, num_random_steps=400
    ),
}


def placed(config, run_dir, **changes):
    return replace(config, run=RunConfig(run_dir=str(run_dir), keep_checkpoints=True), **changes)


def outcome(run_dir):
    """What a run ends with, without what depends on the clock; weights to the byte."""
    files = [run_dir / name / file for name in ("best", "last") for file in (ARRAYS, VALUES)]
    return (
        lasting(json.loads((run_dir / "summary.json").read_text())),
        [lasting(record) for record in read_metrics(run_dir)],
        json.loads((run_dir / "evaluations.json").read_text()),
        [hashlib.sha256(file.read_bytes()).hexdigest() for file in files],
    )


def lasting(figures):
    return {k: v for k, v in figures.items() if k != "time" and not k.startswith("time/")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of each algorithm's run, never interrupted."""

    @cache
    def folder_of(name):
        folder = tmp_path_factory.mktemp(name) / "run"
        train_agent(placed(CONFIGS[name], folder))
        return folder

    return folder_of


@pytest.mark.parametrize("name", CONFIGS)
def test_interrupted_twice_it_ends_as_if_it_had_not_been(name, finished, tmp_path, monkeypatch):
    config = placed(CONFIGS[name], tmp_path / "run")
    for calls in (3, 2):  # so many times it has looked whether it should stop
        left = iter([0] * calls)
        with monkeypatch.context() as patch, pytest.raises(Interrupted, match="state saved") as e:
            patch.setattr(training, "stop_requested", lambda left=left: next(left, signal.SIGTERM))
            train_agent(config)
        assert e.value.exit_code == 143
    train_agent(config)
    assert outcome(tmp_path / "run") == outcome(finished(name))


@pytest.mark.parametrize("name, step", [("ppo", 160), ("dqn", 320), ("ddpg", 480), ("cql", 480)])
def test_stopped_in_an_evaluation_it_repeats_it(name, step, finished, tmp_path, monkeypatch):
    """Stopped two steps into it; then killed as soon as it was repeated, before the next save."""
    config = placed(CONFIGS[name], tmp_path / "run", loop=replace(LOOP, save_every_steps=0))
    evaluate = training.Training._evaluate

    def stopped(self):
        if self.steps >= step:
            left = iter([0, 0])
            monkeypatch.setattr(evaluation, "stop_requested", lambda: next(left, signal.SIGINT))
            monkeypatch.setattr(training, "stop_requested", lambda: signal.SIGINT)
        evaluate(self)

    def killed(self):
        evaluate(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(training.Training, "_evaluate", stopped)
    with pytest.raises(Interrupted, match="run: stopped in an evaluation, state saved") as stop:
        train_agent(config)
    assert stop.value.exit_code == 130
    monkeypatch.undo()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.Training, "_evaluate", killed)
        train_agent(config)
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == [f"checkpoint-{step}"]
    train_agent(config)
    assert outcome(tmp_path / "run") == outcome(finished(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_leaves_curves_weights_and_a_report(name, finished):
    run_dir = finished(name)
    report = write_report(run_dir).read_text()
    assert "<svg" in report and "eval/episode_return" in report
    summary, metrics, evaluations, _ = outcome(run_dir)
    assert [e["step"] for e in evaluations] == [160, 320, 480]
    assert all(len(e["episode_return"]) == 2 for e in evaluations)
    assert any("eval/episode_return_std" in record for record in metrics)
    assert summary["num_steps"] == 480
    assert summary["num_env_steps"] == (0 if name == "cql" else 960)
    assert {"best/episode_return", "last/episode_return", "last/episode_length"} <= {*summary}
    assert train_agent(placed(CONFIGS[name], run_dir)).items() >= summary.items()  # returns at once
    world, act = CONFIGS[name].environment, partial(read_agent(run_dir / "best").act, greedy=True)
    result = evaluate_members(act, world.id, 1, 3, training.EVAL_SEED, **world.kwargs)
    best = max(value for e in evaluations for value in e["episode_return"])
    assert result.returns.mean() == pytest.approx(best)


def test_a_stop_file_ends_a_run_in_good_order_with_an_evaluation(tmp_path, monkeypatch, capsys):
    run_dir, learn = tmp_path / "run", training.Training._learn

    def learn_and_ask(self):
        learn(self)
        if self.steps >= 200:
            (run_dir / "stop").touch()

    monkeypatch.setattr(training.Training, "_learn", learn_and_ask)
    summary = train_agent(placed(CONFIGS["ppo"], run_dir))
    assert summary["num_steps"] == 224 and "last/episode_return" in summary
    _, _, evaluations, _ = outcome(run_dir)
    assert [e["step"] for e in evaluations] == [160, 224]  # whole rollouts of 32 steps
    head, *rows = capsys.readouterr().out.splitlines()  # people see each of them
    assert head.split() == ["step", "return", "best"]
    assert [row.split()[0] for row in rows[:2]] == ["160", "224"]


def test_trackers_are_told_and_one_that_fails_is_named_once(tmp_path, monkeypatch, caplog):
    def no_connection(*args, **kwargs):
        raise ConnectionError("no route to host")

    run = RunConfig(run_dir=str(tmp_path / "run"), report_to=["tensorboard"])
    config = replace(CONFIGS["ppo"], run=run, loop=replace(LOOP, total_steps=128))
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", no_connection)
    train_agent(config)
    warning = "tensorboard failed (ConnectionError: no route to host): the run goes on without it"
    assert caplog.text.count(warning) == 1
    assert len(read_metrics(tmp_path / "run")) > 1
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path):
    agent = replace(CONFIGS["ppo"].agent, learning_rate=1e20, max_grad_norm=1e20)
    with pytest.raises(NonFiniteError, match=r"member \d: the gradient is not finite") as error:
        train_agent(placed(CONFIGS["ppo"], tmp_path / "run", agent=agent))
    assert error.value.exit_code == 4


class Moody(gym.Wrapper):
    """Does in each step what it is told; steps are counted over all copies."""

    deed, steps = None, count()

    def step(self, action):
        result, number = self.env.step(action), next(self.steps)
        if type(self).deed is not None:
            type(self).deed(number)
        return result


def test_a_world_that_raised_and_then_prints_and_seeds_ends_as_any_other(tmp_path, monkeypatch):
    make = lambda **kwargs: Moody(gym.make(SHORT.id, **kwargs))  # noqa: E731
    spec = gym.envs.registration.EnvSpec("test/Moody-v0", make, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    config = placed(CONFIGS["ppo"], tmp_path / "run", environment=replace(SHORT, id=spec.id))
    train_agent(placed(config, tmp_path / "whole"))

    def raises(number):
        if number % 1000 == 999:
            raise KeyError("no cell")

    def talks(number):
        sys.stdout.write("a \x1b[31mred [bold] line\n")
        random.seed(0)
        np.random.seed(0)

    monkeypatch.setattr(Moody, "deed", staticmethod(raises))
    with pytest.raises(EnvironmentFault, match=r"raised KeyError: 'no cell'.*last action"):
        train_agent(config)
    monkeypatch.setattr(Moody, "deed", staticmethod(talks))
    train_agent(config)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_world_or_data_that_do_not_suit_are_refused(tmp_path):
    for name, env_id in (("dqn", "Pendulum-v1"), ("ddpg", "CartPole-v1"), ("cql", "Pendulum-v1")):
        agent = replace(CONFIGS[name].agent, rescale_observations=None)
        changes = {"environment": settings.WorldConfig(env_id), "agent": agent}
        kind = "Box actions, got Discrete" if name == "ddpg" else "Discrete actions from 0, got Box"
        with pytest.raises(ConfigError, match=f"{name.upper()}: expected {kind}"):
            train_agent(placed(CONFIGS[name], tmp_path / name, **changes))
    data = random_transitions(settings.WorldConfig("FrozenLake-v1"), 50, seed=0)
    write_transitions(tmp_path / "lake", data)
    config = placed(CONFIGS["cql"], tmp_path / "run", data=str(tmp_path / "lake"))
    with pytest.raises(DataError, match="data: expected observations of Box"):
        train_agent(config)


def test_random_play_covers_all_actions_and_keeps_true_successors():
    short = settings.WorldConfig("CartPole-v1", {"max_episode_steps": 10})
    data = random_transitions(short, 400, seed=1)
    assert len(data) == 400 and set(data.actions.tolist()) == {0, 1}
    follows = (data.next_observations[:-8] == data.observations[8:]).all(1)
    assert 0.7 < follows.mean() < 1  # each copy's rows are 8 apart; episodes end in between


def test_a_model_that_learnt_from_normalised_observations_is_shown_such():
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common import vec_env

    copies = vec_env.DummyVecEnv([lambda: gym.make("MountainCar-v0")])
    envs = vec_env.VecNormalize(copies, clip_obs=100.0)
    model = stable_baselines3.PPO("MlpPolicy", envs, n_steps=8, batch_size=8, seed=0)
    envs.obs_rms.mean, envs.obs_rms.var = np.array([-0.5, 0.0]), np.array([1e-2, 1e-6])
    rows = np.random.default_rng(0).uniform([-1.2, -0.07], [0.6, 0.07], (200, 2)).astype("float32")
    shown = ((rows - [-0.5, 0.0]) / [0.1, 1e-3]).astype("float32")
    expected, as_they_are = (model.predict(x, deterministic=True)[0] for x in (shown, rows))
    assert sb3_act(model)(rows[None])[0].tolist() == expected.tolist() != as_they_are.tolist()
