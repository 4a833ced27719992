"""What a critic learns: returns, bootstrapped where an episode was cut."""

import numpy as np
import pytest
import torch
from training_setups import (
    STATES,
    chain_of,
    changed,
    episodes,
    make_critic,
    open_run,
)

from lactchain.config.settings import CriticConfig
from lactchain.errors import DataError
from lactchain.models.critic import EmbeddingCritic
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import train
from lactchain.trainers.critic import EpisodeTable, RegressionRows, return_scale, split_episodes
from lactchain.types import Action, Trajectory


@pytest.fixture(scope="module")
def critic(tiny):
    return EmbeddingCritic.from_config(CriticConfig(str(tiny / "encoder"), gamma=0.5))


def trajectory(rewards, *, terminated, states=STATES):
    """One chain of one action per reward."""
    steps = len(rewards)
    return Trajectory(
        env_id="test/Env-v0",
        seed=0,
        observations=tuple(states[: steps + 1]),
        actions=tuple(Action(chain_of(1 + t)) for t in range(steps)),
        rewards=tuple(rewards),
        infos=({}, *({"rewards": [r], "executed": ["turn left"]} for r in rewards)),
        terminated=terminated,
        truncated=not terminated,
    )


@pytest.mark.parametrize("terminated", [True, False])
def test_monte_carlo_targets_are_the_returns_of_trajectories(critic, terminated):
    found = episodes(terminated, num_rows=50)
    table = EpisodeTable(found, critic)
    values = torch.randn(len(table.inputs), generator=torch.Generator().manual_seed(0))
    texts = list(dict.fromkeys(text for t in found for text in t.observations))
    value_of = dict(zip(texts, values.tolist(), strict=True))
    expected = sorted(
        (text, target)
        for t in found
        for text, target in zip(
            t.observations, t.returns(0.5, final_value=value_of[t.observations[-1]]), strict=False
        )
    )
    read = [texts[index] for index in table.row_inputs]
    actual = sorted(zip(read, table.targets(values).tolist(), strict=True))
    assert [text for text, _ in actual] == [text for text, _ in expected]
    np.testing.assert_allclose([x for _, x in actual], [x for _, x in expected])
    assert table.needs_values is not terminated


def test_of_what_follows_a_share_is_as_it_came_and_the_rest_the_value_of_the_next_state(critic):
    table = EpisodeTable([trajectory([1.0, 2.0, 4.0], terminated=True)], critic)
    values = torch.tensor([10.0, 20.0, 30.0, 40.0])[: len(table.inputs)]
    # 4; 2 + .5 (.25 · 4 + .75 · 30) = 13.75; 1 + .5 (.25 · 13.75 + .75 · 20) = 10.21875
    assert table.targets(values, trace=0.25).tolist() == [10.21875, 13.75, 4.0]
    assert table.targets(values, trace=0.0).tolist() == [11.0, 17.0, 4.0]
    cut = EpisodeTable([trajectory([1.0, 2.0], terminated=False)], critic)
    # 2 + .5 · 30 = 17; 1 + .5 (.25 · 17 + .75 · 20)
    assert cut.targets(values, trace=0.25).tolist() == [10.625, 17.0]


def test_last_chain_of_a_cut_episode_is_the_bootstrap_of_a_critic_of_chains(tiny):
    critic = EmbeddingCritic.from_config(
        CriticConfig(str(tiny / "encoder"), gamma=0.5, mode="action_value")
    )
    cut = [trajectory([1.0, 2.0, 4.0], terminated=False), trajectory([8.0], terminated=False)]
    table = EpisodeTable(cut, critic)
    values = torch.tensor([10.0, 20.0, 30.0, 40.0])[: len(table.inputs)]
    # 2 + .5 * Q(s_2, chain_2) = 17; 1 + .5 * 17; the one-step episode has nothing to go on
    assert table.targets(values).tolist() == [9.5, 17.0]
    ended = EpisodeTable([trajectory([1.0, 2.0, 4.0], terminated=True)], critic)
    assert ended.targets(values).tolist() == [3.0, 4.0, 4.0]


def test_silence_is_no_row_and_the_return_passes_through_it(critic):
    spoken = trajectory([-1.0, 0.0, -1.0], terminated=True)
    spoken.infos[2]["unheard"] = True
    table = EpisodeTable([spoken], critic)
    assert len(table) == 2
    assert table.targets(torch.zeros(len(table.inputs))).tolist() == [-1.5, -1.0]
    # √((1.5² + 1²) / 2)
    assert return_scale([spoken], 0.5, "action") == pytest.approx(1.625**0.5)
    silent = trajectory([0.0], terminated=False)
    silent.infos[1]["unheard"] = True
    with pytest.raises(DataError, match="expected completions that are chains, got none"):
        return_scale([silent], 0.5, "action")


def test_episodes_without_decisions_are_left_out(critic):
    empty = trajectory([], terminated=True)
    table = EpisodeTable([empty, trajectory([1.0], terminated=True)], critic)
    assert len(table) == 1
    with pytest.raises(ValueError, match="at least one decision"):
        EpisodeTable([empty], critic)


def test_rows_of_equal_texts_give_the_gradient_of_all_decisions(critic):
    table = EpisodeTable(episodes(num_rows=200), critic)
    targets = table.targets(torch.zeros(len(table.inputs)))
    rows = RegressionRows(table)
    rows.renew(targets)
    assert len(rows) == len(set(table.row_inputs.tolist())) < 200
    decisions = (table.row_inputs, targets, torch.ones(200))
    gradients = []
    for read, target, weight in (decisions, (rows._input_of, rows.targets, rows.weights)):
        values = torch.zeros(len(table.inputs), dtype=torch.double, requires_grad=True)
        (weight * (values[read] - target).square()).mean().backward()
        gradients.append(values.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_scores_of_a_perfect_and_of_a_constant_critic(critic):
    table = EpisodeTable(
        [trajectory([1.0], terminated=True), trajectory([3.0], terminated=True, states=STATES[5:])],
        critic,
    )
    perfect = torch.zeros(len(table.inputs))
    perfect[table.row_inputs] = torch.tensor([1.0, 3.0])
    assert table.scores(perfect)["r2"] == 1.0
    constant = table.scores(torch.full_like(perfect, 2.0))
    assert constant == {
        "r2": 0.0, "rmse": 1.0, "value_mean": 2.0, "return_mean": 2.0, "return_std": 1.0
    }  # fmt: skip


def test_r2_of_equal_returns_is_not_a_number(critic):
    table = EpisodeTable([trajectory([1.0], terminated=True)], critic)
    assert np.isnan(table.scores(torch.zeros(len(table.inputs)))["r2"])


def test_held_out_episodes_are_whole_and_reproducible():
    found = episodes(num_rows=40)
    train_set, held_out = split_episodes(found, 0.25, seed=1)
    assert len(held_out) == len(found) // 4
    assert {t.seed for t in train_set} | {t.seed for t in held_out} == {t.seed for t in found}
    assert split_episodes(found, 0.25, seed=1)[1] == held_out
    assert split_episodes(found, 0.0, seed=1)[1] == []


def test_return_scale_is_a_root_mean_square_and_never_zero():
    assert return_scale([trajectory([3.0], terminated=True)], 0.9, "action") == 3.0
    assert return_scale([trajectory([0.0], terminated=True)], 0.9, "action") == 1.0


def test_critic_learns_returns_and_is_measured_on_held_out_episodes(tiny, run_dir):
    settings = changed(num_epochs=60, batch_size=16, gradient_accumulation_steps=1)
    with open_run(run_dir) as run:
        trainer = make_critic(tiny, run, lora=False, settings=settings, terminated=True)
        # The reward is the state's first number, so one-step episodes have exact returns.
        one_step = [trajectory([float(s[0])], terminated=True, states=[s, s]) for s in STATES]
        trainer.table = EpisodeTable(one_step[::2], trainer.critic)
        trainer.train_dataset = RegressionRows(trainer.table)
        train(trainer)
        held_out = EpisodeTable(one_step[1::2], trainer.critic)
        metrics = trainer.evaluate(held_out)
    assert metrics["eval_r2"] > 0.9
    assert read_metrics(run_dir)[-1]["eval/r2"] == pytest.approx(metrics["eval_r2"])


def test_targets_of_a_bootstrapping_critic_are_renewed_once_per_epoch(tiny, run_dir):
    with open_run(run_dir) as run:
        trainer = make_critic(tiny, run, lora=True)
        seen = []
        renew = trainer.train_dataset.renew
        trainer.train_dataset.renew = lambda targets: (seen.append(targets), renew(targets))
        train(trainer)
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])
