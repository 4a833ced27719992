"""Exact values, against numbers worked out by hand and against play in the environment itself."""

from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from script_setups import GRID, config_of, run_here

from lactchain import ConfigError, EmbeddingCritic, Episode, GridWorld, OptimalChains, Rollouts, Run
from lactchain.config.settings import ActorConfig, CriticConfig
from lactchain.data.evaluations import read_values
from lactchain.data.exact_values import can_enumerate, critic_against_exact, exact_policy
from lactchain.environments import exact
from lactchain.environments.language import language_env, make_language_env
from lactchain.environments.views import tabular_model
from lactchain.functional.random_streams import derive_seed
from lactchain.models.actor import LanguageActor
from lactchain.stages.train_critic import measure_values
from lactchain.stages.world_facts import size_of_model

TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"


def random_policy(num_states, chains, invalid, seed=0):
    """Random distributions over chains, zeros among them; row by row they sum to 1 − invalid."""
    rng = np.random.default_rng(seed)
    weights = rng.random((num_states, len(chains))) * (rng.random((num_states, len(chains))) < 0.3)
    weights[:, 0] += 0.1
    return (1 - np.c_[invalid]) * weights / weights.sum(axis=1, keepdims=True)


def test_optimal_values_of_the_grid_are_powers_of_gamma():
    model = tabular_model(GridWorld())
    distances = exact.shortest_paths(model)
    np.testing.assert_allclose(exact.optimal_values(model, 0.9), 0.9 ** (distances - 1), rtol=1e-12)
    assert (exact.optimal_values(model, 1.0) == 1.0).all()
    founding = tabular_model(GridWorld(reward="founding"))
    np.testing.assert_allclose(exact.optimal_values(founding, 1.0), 101.0 - distances)


def distance(x, y, orientation, goal_x, goal_y):
    """Fewest actions on a free grid: the turns to the first leg, the legs, the turn between them.

    Second implementation: with left turns only, the order of the legs is the caller's to choose.
    """
    legs = [(1 if goal_x > x else 3, abs(goal_x - x)), (2 if goal_y > y else 0, abs(goal_y - y))]
    legs = [leg for leg in legs if leg[1]]
    costs = []
    for order in (legs, legs[::-1]):
        facing, cost = orientation, 0
        for direction, steps in order:
            cost += (facing - direction) % 4 + steps
            facing = direction
        costs.append(cost)
    return min(costs)


def test_shortest_paths_of_the_4x4_grid():
    model = tabular_model(GridWorld())
    expected = [distance(**state) for state in model.non_terminal_states]
    assert exact.shortest_paths(model).tolist() == expected
    assert max(expected) == 9  # the documented longest
    chains = exact.optimal_chains(model, 100)
    assert [len(chain) for chain in chains] == expected
    assert exact.optimal_chains(model, 2) == [chain[:2] for chain in chains]
    assert model.row(model.non_terminal_states[5]) == 5


def test_gymnasium_worlds_have_their_known_values():
    cliff = tabular_model(gym.make("CliffWalking-v1"))
    assert exact.shortest_paths(cliff)[cliff.row({"state": 36})] == 13
    assert exact.optimal_values(cliff, 1.0)[cliff.row({"state": 36})] == -13
    assert len(cliff.non_terminal) == 37
    lake = tabular_model(gym.make("FrozenLake-v1", is_slippery=False))
    assert exact.shortest_paths(lake)[0] == 6
    assert lake.goal.sum() == 1
    assert lake.terminal.sum() == 5
    slippery = tabular_model(gym.make("FrozenLake-v1"))
    # the well-known value of the start at gamma 0.99
    assert exact.optimal_values(slippery, 0.99)[0] == pytest.approx(0.5420, abs=1e-4)
    # the best chance of ever reaching the goal; within Gymnasium's time limit it is 0.74
    assert exact.optimal_values(slippery, 1.0)[0] == pytest.approx(14 / 17)


@pytest.mark.extras
def test_a_passenger_who_changes_his_mind_is_in_no_table():
    with pytest.raises(ValueError, match="expected an exact model, that of"):
        tabular_model(gym.make(TAXI, fickle_passenger=True))
    env = language_env(TAXI, {"fickle_passenger": True})
    assert len(env.view_states()) == 400
    assert not can_enumerate(env)
    with pytest.raises(ValueError, match="expected an exact model"):
        OptimalChains(env)
    assert tabular_model(gym.make(TAXI)).deterministic


@pytest.mark.parametrize("discount_per", ["action", "chain"])
@pytest.mark.parametrize(("env_id", "kwargs"), [
    ("lactchain/GridWorld-v0", {"size": 3, "walls": [(1, 1)]}),
    ("lactchain/GridWorld-v0", {"size": 2, "reward": "founding", "turn_right": True}),
    ("FrozenLake-v1", {"is_slippery": False}),
])  # fmt: skip
def test_policy_values_equal_those_of_play_in_the_environment(env_id, kwargs, discount_per):
    """Second implementation: every chain is played from every state, then sweeps till they rest."""
    gamma, penalty, cost = 0.8, -0.3, 0.05
    env = language_env(env_id, kwargs, chain_cost=cost, max_chains=2)
    model = tabular_model(env.env)
    chains = exact.pad_chains(exact.all_chains(model.next_state.shape[1], 3))
    states = env.view_states()
    rewards = np.zeros((len(states), len(chains)))
    discounts, successors = np.zeros_like(rewards), np.zeros(rewards.shape, int)
    for row, state in enumerate(states):
        for column, chain in enumerate(chains):
            env.reset(options={"state": state})
            chain = chain[chain >= 0]
            _, reward, terminated, _, info = env.step(env.grammar.render(chain))
            steps = gamma ** np.arange(len(info["rewards"]))
            per_action = discount_per == "action"
            rewards[row, column] = steps @ info["rewards"] - cost if per_action else reward
            if not terminated:
                successors[row, column] = model.row(info["state"])
                discounts[row, column] = gamma ** len(chain) if per_action else gamma
    invalid = np.linspace(0, 0.3, len(states))
    probabilities = random_policy(len(states), chains, invalid)
    values = np.zeros(len(states))
    for _ in range(2000):
        played = (probabilities * (rewards + discounts * values[successors])).sum(axis=1)
        values = played + invalid * (penalty - cost + gamma * values)
    found = exact.policy_values(model, chains, probabilities, gamma, discount_per, penalty, cost)
    np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-12)


def test_what_has_no_answer_is_refused():
    model = tabular_model(GridWorld(width=2, height=1, goal=(1, 0)))  # states: 4 orientations
    turning, ice = np.tile([0.0, 1.0], (4, 1)), tabular_model(gym.make("FrozenLake-v1"))
    hardly_ever = np.tile([1e-12, 1 - 1e-12], (4, 1))
    values = partial(exact.policy_values, model, exact.pad_chains(exact.all_chains(2, 1)))
    goal = {"x": 1, "y": 0, "orientation": 0, "goal_x": 1, "goal_y": 0}
    endless = replace(model, reward=np.ones_like(model.reward))
    for error, message, ask in (
        (ConfigError, "go on for ever", lambda: values(turning, 1.0)),
        (ConfigError, "go on for ever", lambda: values(hardly_ever, 1.0)),
        (ValueError, "at most 1 in every row", lambda: values(2 * turning, 0.9)),
        (ValueError, r"expected shape \(4, 2\)", lambda: values(turning[:3], 0.9)),
        (ValueError, "discount_per", lambda: values(turning, 0.9, "episode")),
        (ValueError, "non-terminal", lambda: model.row(goal)),
        (ValueError, "deterministic", lambda: exact.shortest_paths(ice)),
        (ValueError, "converge", lambda: exact.optimal_values(endless, 1.0, max_iterations=100)),
        (ConfigError, "no text view is shipped", lambda: tabular_model(gym.make("CartPole-v1"))),
    ):
        with pytest.raises(error, match=message):
            ask()
    lake = tabular_model(gym.make("FrozenLake-v1", desc=["SFHG", "FFHF"], is_slippery=False))
    assert np.isinf(exact.shortest_paths(lake)).all()
    with pytest.raises(ConfigError, match="expected a world in which something can be reached"):
        size_of_model(lake)


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
    asked = CriticConfig(str(weights / "encoder"), gamma=0.9, discount_per=discount_per)
    critic = EmbeddingCritic.from_config(asked)
    policy = exact_policy(actor, rollouts.env, tmp_path)
    values = critic_against_exact(critic, policy, rollouts.env)
    assert len(values.states) == 48 and values.critic == (0.0,) * 48
    places = [(n, i) for n in numbers for i in range(NUM_EPISODES)]
    episodes = [Episode(derive_seed(n, "play", i), values.states[n]) for n, i in places]
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


@pytest.mark.parametrize("changes", [
    {"compare_with_exact": False},
    {"actor": {"decoding": "free", "max_new_tokens": 4}},
    {"critic": {"mode": "action_value"}},
    {"environment": {"max_chain_length": 12}},
], ids=lambda changes: next(iter(changes)))  # fmt: skip
def test_where_values_cannot_be_computed_none_are_claimed(weights, tmp_path, changes):
    config = config_of("train_critic", weights, tmp_path / "run")
    for name, change in changes.items():
        value = replace(getattr(config, name), **change) if isinstance(change, dict) else change
        config = replace(config, **{name: value})
    with Run.open(tmp_path / "run", config) as run:
        assert measure_values(config, run) == {}
    assert not (tmp_path / "run" / "values.json").exists()


@pytest.mark.parametrize(("env_id", "kwargs", "num_states"), [
    (TAXI, {"is_rainy": True}, 400), ("CliffWalking-v1", {"is_slippery": True}, 37),
    ("FrozenLake-v1", {"success_rate": 0.8}, 11),
])  # fmt: skip
def test_worlds_with_dice_have_the_values_of_their_table(env_id, kwargs, num_states):
    """Second implementation: Bellman's equation written out over Gymnasium's own table."""
    env = gym.make(env_id, **kwargs)
    model, table, gamma = tabular_model(env), env.unwrapped.P, 0.7
    assert not model.deterministic and len(model.non_terminal) == num_states
    values = dict.fromkeys(table, 0.0)
    for _ in range(110):  # 0.7 ** 110 of a reward of 100 is less than 1e-14
        values = {
            state: max(
                sum(p * (r + gamma * values[s] * (not over)) for p, s, r, over in outcomes)
                for outcomes in actions.values()
            )
            for state, actions in table.items()
        }
    expected = [values[state["state"]] for state in model.non_terminal_states]
    np.testing.assert_allclose(exact.optimal_values(model, gamma), expected, atol=1e-9)


def test_policy_values_of_a_stochastic_world_equal_products_of_its_matrices():
    """Second implementation: dense transition matrices multiplied along each chain."""
    world = gym.make("FrozenLake-v1").unwrapped
    model = tabular_model(world)
    move, earn = np.zeros((4, 16, 16)), np.zeros((4, 16))
    for state, actions in world.P.items():
        for action, outcomes in actions.items():
            for p, successor, reward, terminated in outcomes:
                earn[action, state] += p * reward
                move[action, state, successor] += p * (not terminated)
    gamma, chains = 0.9, exact.pad_chains(exact.all_chains(4, 3))
    probabilities = random_policy(11, chains, invalid=0.1)
    numbers = [state["state"] for state in model.non_terminal_states]
    transition, expected = 0.1 * gamma * np.eye(16), np.zeros(16)
    for column, chain in enumerate(chains):
        reach, total = np.eye(16), np.zeros(16)
        for action in chain[chain >= 0]:
            total += reach @ earn[action]
            reach = gamma * reach @ move[action]
        chosen = np.zeros(16)
        chosen[numbers] = probabilities[:, column]
        expected += chosen * total
        transition += chosen[:, None] * reach
    values = np.linalg.solve(np.eye(16) - transition, expected)[numbers]
    np.testing.assert_allclose(exact.policy_values(model, chains, probabilities, gamma), values)
