"""What a critic learns: returns, bootstrapped where cut; its head has a closed form as well."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_odd_parts import encoder
from training_setups import STATES, chain_of, changed, episodes, make_critic, open_run
from trajectories import trajectory

from lactchain import CriticConfig, DataError, EmbeddingCritic
from lactchain.data.evaluations import StateValues
from lactchain.data.intervals import explained_share
from lactchain.models.critic import check_critic, resolve_pooling
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import train
from lactchain.trainers.closed_form import NUM_FOLDS, RidgeFolds
from lactchain.trainers.critic import EpisodeTable, RegressionRows, return_scale, split_episodes


@pytest.fixture(scope="module")
def critic(tiny):
    return EmbeddingCritic.from_config(CriticConfig(str(tiny / "encoder"), gamma=0.5))


def played(rewards, *, terminated, states=STATES):
    """One chain of one action per reward."""
    chains = [chain_of(1 + t) for t in range(len(rewards))]
    infos = [{}, *({"rewards": [r], "executed": ["turn left"]} for r in rewards)]
    return trajectory(states[: len(rewards) + 1], chains, rewards, infos, terminated=terminated)


ONE_STEP = [played([float(s[0])], terminated=True, states=[s, s]) for s in STATES]
"""The reward is the state's first number, so the returns are exact."""


@pytest.mark.parametrize("terminated", [True, False])
def test_monte_carlo_targets_are_the_returns_of_trajectories(critic, terminated):
    found = episodes(terminated, num_rows=50)
    table = EpisodeTable(found, critic)
    values = torch.randn(len(table.inputs), generator=torch.Generator().manual_seed(0))
    texts = list(dict.fromkeys(text for t in found for text in t.observations))
    value_of = dict(zip(texts, values.tolist(), strict=True))
    expected = []
    for t in found:
        returns = t.returns(0.5, final_value=value_of[t.observations[-1]])
        expected += zip(t.observations, returns, strict=False)
    expected.sort()
    read = [texts[index] for index in table.row_inputs]
    actual = sorted(zip(read, table.targets(values).tolist(), strict=True))
    assert [text for text, _ in actual] == [text for text, _ in expected]
    np.testing.assert_allclose([x for _, x in actual], [x for _, x in expected])
    assert table.needs_values() is not terminated


def test_of_what_follows_a_share_is_as_it_came_and_the_rest_the_value_of_the_next_state(critic):
    table = EpisodeTable([played([1.0, 2.0, 4.0], terminated=True)], critic)
    values = torch.tensor([10.0, 20.0, 30.0, 40.0])[: len(table.inputs)]
    # 4; 2 + .5 (.25 · 4 + .75 · 30) = 13.75; 1 + .5 (.25 · 13.75 + .75 · 20) = 10.21875
    assert table.targets(values, trace=0.25).tolist() == [10.21875, 13.75, 4.0]
    assert table.targets(values, trace=0.0).tolist() == [11.0, 17.0, 4.0]
    cut = EpisodeTable([played([1.0, 2.0], terminated=False)], critic)
    # 2 + .5 · 30 = 17; 1 + .5 (.25 · 17 + .75 · 20)
    assert cut.targets(values, trace=0.25).tolist() == [10.625, 17.0]


def test_last_chain_of_a_cut_episode_is_the_bootstrap_of_a_critic_of_chains(tiny):
    config = CriticConfig(str(tiny / "encoder"), gamma=0.5, mode="action_value")
    critic = EmbeddingCritic.from_config(config)
    cut = [played([1.0, 2.0, 4.0], terminated=False), played([8.0], terminated=False)]
    table = EpisodeTable(cut, critic)
    values = torch.tensor([10.0, 20.0, 30.0, 40.0])[: len(table.inputs)]
    # 2 + .5 * Q(s_2, chain_2) = 17; 1 + .5 * 17; the one-step episode has nothing to go on
    assert table.targets(values).tolist() == [9.5, 17.0]
    ended = EpisodeTable([played([1.0, 2.0, 4.0], terminated=True)], critic)
    assert ended.targets(values).tolist() == [3.0, 4.0, 4.0]


def test_silence_is_no_row_and_the_return_passes_through_it(critic):
    spoken = played([-1.0, 0.0, -1.0], terminated=True)
    spoken.infos[2]["unheard"] = True
    table = EpisodeTable([spoken], critic)
    assert len(table.row_inputs) == 2
    assert table.targets(torch.zeros(len(table.inputs))).tolist() == [-1.5, -1.0]
    # √((1.5² + 1²) / 2)
    assert return_scale([spoken], 0.5, "action") == pytest.approx(1.625**0.5)
    assert return_scale([played([0.0], terminated=True)], 0.5, "action") == 1.0  # never 0
    silent = played([0.0], terminated=False)
    silent.infos[1]["unheard"] = True
    with pytest.raises(DataError, match="expected completions that are chains, got none"):
        return_scale([silent], 0.5, "action")


def test_episodes_without_decisions_are_left_out(critic):
    empty = played([], terminated=True)
    table = EpisodeTable([empty, played([1.0], terminated=True)], critic)
    assert len(table.row_inputs) == 1
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
    one, three = played([1.0], terminated=True), played([3.0], terminated=True, states=STATES[5:])
    table = EpisodeTable([one, three], critic)
    perfect = torch.zeros(len(table.inputs))
    perfect[table.row_inputs] = torch.tensor([1.0, 3.0])
    assert table.scores(perfect)["r2"] == 1.0
    constant = table.scores(torch.full_like(perfect, 2.0))
    assert constant == {
        "r2": 0.0, "rmse": 1.0, "value_mean": 2.0, "return_mean": 2.0, "return_std": 1.0
    }  # fmt: skip
    alike = EpisodeTable([played([1.0], terminated=True)], critic)
    assert np.isnan(alike.scores(torch.zeros(len(alike.inputs)))["r2"])


def test_held_out_episodes_are_whole_and_reproducible():
    found = episodes(num_rows=40)
    train_set, held_out = split_episodes(found, 0.25, seed=1)
    assert len(held_out) == len(found) // 4
    assert {t.seed for t in train_set} | {t.seed for t in held_out} == {t.seed for t in found}
    assert split_episodes(found, 0.25, seed=1)[1] == held_out
    assert split_episodes(found, 0.0, seed=1)[1] == []


def test_critic_learns_returns_and_is_measured_on_held_out_episodes(tiny, run_dir):
    settings = changed(num_epochs=60, batch_size=16, gradient_accumulation_steps=1)
    with open_run(run_dir) as run:
        trainer = make_critic(tiny, run, lora=False, settings=settings, terminated=True)
        trainer.table = EpisodeTable(ONE_STEP[::2], trainer.critic)
        trainer.train_dataset = RegressionRows(trainer.table)
        train(trainer)
        held_out = EpisodeTable(ONE_STEP[1::2], trainer.critic)
        metrics = trainer.evaluate(held_out)
    assert metrics["eval_r2"] > 0.9
    assert read_metrics(run_dir)[-1]["eval/r2"] == pytest.approx(metrics["eval_r2"])


def test_targets_of_a_bootstrapping_critic_are_renewed_once_per_epoch(tiny, run):
    trainer, seen = make_critic(tiny, run, lora=True), []
    renew = trainer.train_dataset.renew
    trainer.train_dataset.renew = lambda targets: (seen.append(targets), renew(targets))
    train(trainer)
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])


def draws(num_texts=40, width=6, num_rows=300, noise=0.5):
    """Features, which text each decision reads, folds, and noisy targets that are linear."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num_texts, width, generator=generator)
    rows = torch.randint(num_texts, (num_rows,), generator=generator)
    truth = features.double() @ torch.arange(width).double() + 7
    targets = truth[rows] + noise * torch.randn(num_rows, generator=generator).double()
    return features, rows, torch.arange(num_rows) % NUM_FOLDS, targets


def plain_ridge(features, targets, strength):
    """Weights and offset by the normal equations of single decisions."""
    x, y = features.double(), targets.double()
    centred, width = x - x.mean(dim=0), x.shape[1]
    added = strength * centred.square().sum() / width
    system = centred.T @ centred + added * torch.eye(width, dtype=torch.double)
    weight = torch.linalg.solve(system, centred.T @ (y - y.mean()))
    return weight, float(y.mean() - x.mean(dim=0) @ weight)


def test_the_head_is_the_ridge_regression_of_single_decisions():
    features, rows, folds, targets = draws()
    found = RidgeFolds(features, rows, folds).solve(targets)
    weight, offset = plain_ridge(features[rows], targets, found.strength)
    torch.testing.assert_close(found.weight, weight)
    assert found.offset == pytest.approx(offset)


def test_folds_are_predicted_by_the_heads_of_the_others():
    features, rows, folds, targets = draws()
    found = RidgeFolds(features, rows, folds).solve(targets)
    predicted = torch.empty_like(targets)
    for fold in range(NUM_FOLDS):
        own, x = folds == fold, features[rows].double()
        weight, offset = plain_ridge(x[~own], targets[~own], found.strength)
        predicted[own] = x[own] @ weight + offset
    error = (predicted - targets).square().mean() / targets.var(correction=0)
    assert found.r2 == pytest.approx(float(1 - error))
    slope = np.polyfit(predicted.numpy(), targets.numpy(), 1)[0]
    assert found.slope == pytest.approx(slope)


def test_luck_is_shrunk_to_the_mean_of_the_returns():
    features, rows, folds, targets = draws(num_texts=300, width=100)
    luck = torch.randn(300, generator=torch.Generator().manual_seed(1)).double() + 3
    found = RidgeFolds(features, rows, folds).solve(luck)
    assert found.strength > RidgeFolds(features, rows, folds).solve(targets).strength
    values = found.values(features)
    assert values.std() < 0.5 * luck.std() and values.mean() == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize("lora", [True, False], ids=["adapter", "all weights"])
def test_the_solved_critic_predicts_what_its_features_hold(tiny, run, lora):
    trainer = make_critic(tiny, run, lora=lora, terminated=True)
    trainer.table = EpisodeTable(ONE_STEP, trainer.critic)
    found = trainer.solve()
    expected = found.values(trainer.values(trainer.table.inputs, as_features=True))
    values = trainer.critic.values(STATES)
    order = [trainer.table.inputs.index(ids) for ids in trainer.critic.tokenize(STATES)]
    np.testing.assert_allclose(values, expected[order], atol=1e-4)
    assert np.corrcoef(values, [float(s[0]) for s in STATES])[0, 1] > 0.9


def test_targets_of_cut_episodes_are_those_of_the_solved_critic(tiny, run):
    trainer = make_critic(tiny, run, lora=True)
    table = trainer.table = EpisodeTable(episodes(terminated=False, num_rows=400), trainer.critic)
    found = trainer.solve()
    features = trainer.values(table.inputs, as_features=True)
    assert table.needs_values()
    folds = RidgeFolds(features, table.row_inputs, table.row_episodes % NUM_FOLDS)
    trace = trainer.critic.settings.trace
    again = folds.solve(table.targets(found.values(features), trace))
    torch.testing.assert_close(again.values(features), found.values(features), atol=0.05, rtol=0)


def test_a_frozen_critic_is_saved_as_its_head_alone(tiny, tmp_path):
    config = CriticConfig(str(tiny / "encoder"), frozen=True)
    critic = EmbeddingCritic.from_config(config, trainable=True, value_scale=10.0)
    assert not any(weight.requires_grad for weight in critic.parameters())
    width = critic.base.config.hidden_size
    critic.set_head(torch.arange(width).double() / width, 5.0)
    critic.save(tmp_path)
    names = {"critic_config.json", "values.safetensors"}
    assert {file.name for file in tmp_path.iterdir()} == names
    loaded = EmbeddingCritic.load(tmp_path)
    assert np.array_equal(loaded.values(STATES), critic.values(STATES))
    loaded.save(tmp_path / "again")
    assert {file.name for file in (tmp_path / "again").iterdir()} == names
    trained = EmbeddingCritic.load(tmp_path, trainable=True)
    assert all(weight.requires_grad for weight in trained.parameters())
    assert np.array_equal(trained.eval().values(STATES), critic.values(STATES))


@pytest.mark.parametrize(("declared", "expected"), [
    ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
    ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "last"),
    ({"pooling_mode": "mean"}, "mean"),
])  # fmt: skip
def test_pooling_follows_the_folder_unless_it_is_set(tmp_path, caplog, declared, expected):
    config = encoder(tmp_path / "encoder", [("Pooling", "1_Pooling")], **declared)
    assert resolve_pooling(config) == expected and not caplog.records
    other = {"mean": "last", "last": "mean"}[expected]
    assert resolve_pooling(replace(config, pooling=other)) == other
    assert len(caplog.records) == 1 and "critic.pooling" in caplog.text


def test_the_last_token_is_pooled_where_nobody_says_otherwise(tiny):
    whole = CriticConfig(str(tiny / "encoder"))
    check_critic(whole)
    assert EmbeddingCritic.from_config(whole).settings.pooling == "last"


def test_the_ceiling_is_the_share_of_the_variance_between_groups():
    values, groups = np.array([1.0, 3.0, 5.0, 7.0]), np.array([0, 0, 1, 1])
    # within: (4 · 1) / (4 - 2) = 2; total: (9 + 1 + 1 + 9) / 4 = 5
    assert explained_share(values, groups, np.arange(4))[0] == pytest.approx(1 - 2 / 5)
    assert np.isnan(explained_share(values, np.arange(4), np.arange(4))[0])
    # two values of one episode do not pass for agreement; pairs across: 1-3, 1-5, twice each: half
    # of the mean square is (4 + 16) / 2 / 2 = 5
    values, units = np.array([1.0, 1.0, 3.0, 5.0]), np.array([0, 0, 1, 1])
    share, _ = explained_share(values, np.zeros(4, int), units)
    assert share == pytest.approx(1 - 5 / np.var(values))


def test_the_interval_of_the_ceiling_holds_the_truth_of_single_decisions_and_of_none():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 8)
    luck = rng.normal(size=800)
    value = rng.normal(size=100)[groups] * 0.5
    units = rng.permutation(800)
    _, (low, high) = explained_share(value + luck, groups, units)
    truth = value.var() / (value.var() + 1)
    assert 0 < low < truth < high < 2 * truth
    _, (low, high) = explained_share(luck, groups, units)
    assert low < 0 < high


def test_rho_is_spearmans_with_mean_ranks_of_ties():
    values = StateValues(({},) * 4, (1.0, 2.0, 2.0, 9.0), (0.0, 5.0, 6.0, 7.0), 0.9)
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert values.rho == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(StateValues(({},) * 2, (1.0, 1.0), (0.0, 1.0), 0.9).rho)
