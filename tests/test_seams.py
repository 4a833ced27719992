"""Any policy and any critic go through every stage, in every shipped world."""

from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import pytest
from script_setups import Finds

import lactchain
from lactchain import Action, Critic, EnvironmentConfig, FunctionPolicy, Policy, PreferenceConfig
from lactchain.data.candidates import sample_candidates, some_after_completion
from lactchain.data.episodes import RecordedText, state_of
from lactchain.data.rollouts import Rollouts

GRID = EnvironmentConfig(kwargs={"size": 2}, max_chain_length=2, max_chains=3)
MAZE = EnvironmentConfig("lactchain/Maze-v0", extractor="utterance", max_chains=3)
WORLDS = {
    "grid": (GRID, '["move forward", "turn left"]'),
    "maze": (MAZE, "move up\n"),
    "wordle": (EnvironmentConfig("lactchain/Wordle-v0", extractor="utterance"), "a b o u t\n"),
    "lake": (EnvironmentConfig("FrozenLake-v1", {"is_slippery": False}, max_chains=3), '["down"]'),
    "cliff": (EnvironmentConfig("CliffWalking-v1", max_chains=3), '["up", "right"]'),
    "taxi": (EnvironmentConfig("Taxi-v4", max_chains=3), '["south"]'),
}


@dataclass
class OneCompletion:
    """Says the same to everything, but for every other completion, which is nonsense."""

    completion: str
    name: str = "one completion"

    def act(self, observations, seeds):
        return [Action(self.completion if seed % 2 else "nonsense") for seed in seeds]


def chance(text):
    """A value that no world knows."""
    return crc32(text.encode()) % 97


@pytest.mark.parametrize(("config", "completion"), WORLDS.values(), ids=WORLDS)
def test_a_policy_and_a_critic_of_ones_own_go_through_every_stage(config, completion):
    policy, critic = OneCompletion(completion), Finds(chance)
    assert isinstance(policy, Policy) and isinstance(critic, Critic)
    rollouts = Rollouts(config, num_envs=8)
    played = lactchain.collect(policy, rollouts, num_episodes=3, seed=1)
    assert len(played) == 3 and all(t.policy == "one completion" for t in played)
    said = {action.text for trajectory in played for action in trajectory.actions}
    assert said <= {completion, "nonsense"}
    results, figures = lactchain.evaluate(policy, rollouts, num_per_start=2)
    assert figures["num_episodes"] == len(results) > 0 and 0 < figures["invalid_rate"] < 1
    few = PreferenceConfig(num_states=8, num_candidates=6, states_per_shard=4, min_margin=0.0)
    pairs, made = lactchain.make_preferences(policy, critic, rollouts, few)
    assert len(pairs) == made["num_pairs"] > 0
    assert all({pair.chosen, pair.rejected} == {completion, "nonsense"} for pair in pairs)
    if not rollouts.deterministic:
        return  # a single play of Wordle, which draws its word anew, is not what it is worth
    # By hand: what the completion earned, and the discounted value of where it led.
    pair = pairs[0]
    [outcome] = rollouts.outcomes([pair.state], [Action(pair.chosen)], pair.seed)
    before, after = critic.values(outcome.observations)
    [reward], [discount] = outcome.chain_rewards(0.5), outcome.chain_discounts(0.5)
    advantage = reward + (not outcome.terminated) * discount * after - before
    assert pair.chosen_value == pytest.approx(advantage)


def test_a_function_is_a_policy_with_and_without_a_seed():
    rollouts = Rollouts("lactchain/GridWorld-v0")
    by_seed = FunctionPolicy(lambda text, seed: f"{seed % 7}", draws=True)
    assert isinstance(by_seed, Policy)
    assert [a.text for a in by_seed.act(["x", "y"], [8, 13])] == ["1", "6"]
    forward = FunctionPolicy(lambda text: '["move forward"]', name="forward")
    [trajectory] = lactchain.collect(forward, rollouts, num_episodes=1)
    assert trajectory.policy == "forward" and trajectory.actions[0].text == '["move forward"]'


@pytest.mark.extras  # on the lake
def test_a_critic_of_chains_ranks_by_its_values_less_the_mean_of_the_chains():
    config, completion = WORLDS["lake"]
    rollouts = Rollouts(config)
    [state] = rollouts.env.view_states()[:1]
    [text] = rollouts.observe([state])
    # The second time in the middle of an episode: the critic judges what the policy has read.
    later = RecordedText(text + " You slipped.", (state,))
    said = iter([completion, '["up"]', "nonsense", completion] * 2 + ["nonsense", ""] * 2)
    policy = FunctionPolicy(lambda text: next(said))
    for prompt, asked in ((text, state), (later.text, later)):
        known = {(prompt, completion): 3.0, (prompt, '["up"]'): 0.0, (prompt, "nonsense"): 9.0}
        critic = Finds(lambda *row, known=known: known[row], "action_value")
        [found] = sample_candidates(policy, rollouts, [asked], 4, 0, critic)
        assert found.is_chain == (True, True, False, True)
        np.testing.assert_allclose(found.advantages, [1.0, -2.0, 7.0, 1.0])
    # Where nothing is a chain nothing is ranked, and the mean is over all.
    critic = Finds(lambda _, said: {"nonsense": 9.0, "": 1.0}[said], "action_value")
    [found] = sample_candidates(policy, rollouts, [state], 4, 0, critic)
    assert found.is_chain == (False,) * 4 and found.advantages == (4.0, -4.0, 4.0, -4.0)


@pytest.mark.parametrize(("config", "completion"), WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("mode", ["value", "action_value", "return"])
def test_a_completion_that_is_no_chain_is_never_preferred_in_any_world(config, completion, mode):
    """Though a critic finds silence worth a hundred, and every step may cost."""
    draws = FunctionPolicy(lambda _, seed: (completion, "nonsense", "")[seed % 3], draws=True)

    def likes_silence(text, said=""):
        return 50.0 * ("legal chain" in text) + 100.0 * (said in ("nonsense", ""))

    critic = None if mode == "return" else Finds(likes_silence, mode)
    few = PreferenceConfig(num_states=24, num_candidates=8, min_margin=0.25)
    pairs, figures = lactchain.make_preferences(draws, critic, config, few)
    assert {pair.chosen for pair in pairs} == {completion}
    assert all(pair.margin >= 0.25 for pair in pairs)
    assert figures["rollout/invalid_rate"] > 0.3
    assert figures["pairs/no_spread_rate"] == 1.0  # there is but one chain


def test_a_share_of_the_states_is_asked_as_the_policys_own_completion_leaves_them():
    facing_up = {"x": 0, "y": 0, "orientation": 0, "goal_x": 3, "goal_y": 3}
    beside_the_goal = facing_up | {"x": 3, "y": 2, "orientation": 2}
    rollouts = Rollouts(EnvironmentConfig(template="{x} {y} {orientation}{feedback}"))
    policy = FunctionPolicy(lambda text: '["move forward"]')
    states = [facing_up, facing_up | {"y": 1}, beside_the_goal, facing_up]
    asked = some_after_completion(policy, rollouts, states, 0.75, seed=0)
    bumped = " You bumped into the edge of the map or a wall."
    assert list(map(str, asked[:2])) == ["0 0 up" + bumped, "0 0 up"]
    # the step on the goal would end its episode; the last one is not in the share
    assert list(map(state_of, asked)) == [facing_up, facing_up, beside_the_goal, facing_up]
    assert asked[2:] == states[2:]
    assert some_after_completion(policy, rollouts, states, 0.0, seed=0) == states
    settings = PreferenceConfig(num_states=96, share_after_completion=0.5, min_margin=0.0)
    rollouts = Rollouts(replace(rollouts.config, kwargs={"size": 2}))
    either = ('["move forward"]', '["turn left", "move forward"]')
    draws = FunctionPolicy(lambda text, seed: either[seed % 2], draws=True)
    pairs, _ = lactchain.make_preferences(draws, None, rollouts, settings)
    assert any(pair.prompt.endswith(bumped) for pair in pairs)


def test_without_files_an_evaluation_and_pairs_come_out_as_with_them(tmp_path):
    config, completion = WORLDS["grid"]
    policy, critic = OneCompletion(completion), Finds(chance)
    few = PreferenceConfig(num_states=8, num_candidates=4, states_per_shard=4)
    kept, _ = lactchain.make_preferences(policy, critic, config, few, folder=tmp_path / "pairs")
    assert lactchain.make_preferences(policy, critic, config, few)[0] == kept
    assert lactchain.read_pairs(tmp_path / "pairs") == kept
    with_files, _ = lactchain.evaluate(policy, config, folder=tmp_path / "played")
    assert lactchain.evaluate(policy, config)[0] == with_files
    assert len(lactchain.read_trajectories(tmp_path / "played")) == len(with_files)
