"""What an actor or an environment may do in rollouts, and candidates to one state."""

import json

import numpy as np
import pytest
from script_setups import GRID
from test_rollouts import FAR, NEAR

from lactchain import FunctionPolicy
from lactchain.config.settings import ActorConfig
from lactchain.data import rollouts as module
from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import sampled_episodes
from lactchain.data.evaluations import collection_metrics
from lactchain.data.rollouts import Rollouts
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.scripted import RandomChains
from lactchain.errors import EnvironmentFault
from lactchain.models.actor import LanguageActor
from lactchain.types import Action


def test_a_model_may_emit_anything_at_all(weights, tmp_path):
    """Bytes, broken UTF-8, special tokens: an untrained model that decodes freely."""
    config = ActorConfig(str(weights / "actor"), max_new_tokens=24, temperature=2.0)
    rollouts = Rollouts(GRID)
    actor = LanguageActor.from_config(config, rollouts.env.grammar)
    episodes = sampled_episodes(rollouts.env, 64, seed=0)
    played, _ = rollouts.collect(actor, episodes, tmp_path / "trajectories")
    texts = [action.text for t in played for action in t.actions]
    assert len(texts) == 64 * GRID.max_chains and len(set(texts)) > 200
    assert not all(text.isascii() for text in texts)
    assert read_trajectories(tmp_path / "trajectories") == played
    assert collection_metrics(played)["rollout/invalid_rate"] == 1
    json.dumps([t.infos for t in played], allow_nan=False)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ({"reward": float("nan")}, "a reward is a finite number; got nan"),
        ({"reward": float("inf")}, "a reward is a finite number; got inf"),
        ({"terminated": "yes"}, "terminated and truncated are booleans"),
        ({"info": None}, "info is a dict"),
    ],
    ids=["nan", "inf", "ending", "info"],
)
def test_an_environment_that_breaks_the_rules_leaves_no_shard(tmp_path, monkeypatch, broken, rule):
    rollouts = Rollouts(GRID, num_envs=4)
    world = type(rollouts.env.env.unwrapped)
    step, names = world.step, ("observation", "reward", "terminated", "truncated", "info")

    def break_at_goal(env, action):
        result = dict(zip(names, step(env, action), strict=True))
        return tuple((result | (broken if result["reward"] > 0 else {})).values())

    monkeypatch.setattr(world, "step", break_at_goal)
    policy = RandomChains(rollouts.env.grammar)
    episodes = sampled_episodes(rollouts.env, 48, seed=0)
    with pytest.raises(EnvironmentFault, match=rule) as fault:
        rollouts.collect(policy, episodes, tmp_path, shard_size=48)
    assert fault.value.exit_code == 6 and not list(tmp_path.glob("*.parquet"))


# --- candidates ----------------------------------------------------------------------------------


def test_outcomes_are_single_decisions_and_equal_completions_are_played_once(monkeypatch):
    rollouts, begun, begin = Rollouts(GRID), [], module._Place.begin
    monkeypatch.setattr(
        module._Place, "begin", lambda *args: (begun.append(args[2].state), begin(*args))
    )
    forward, turn = Action('["move forward"]', (1,)), Action('["turn left"]', (2,))
    outcomes = rollouts.outcomes([NEAR, NEAR, NEAR, FAR], [forward, turn, forward, forward], 0)
    assert [o.episode_return for o in outcomes] == [1, 0, 1, 0]
    assert [o.terminated for o in outcomes] == [True, False, True, False]
    assert [o.truncated for o in outcomes] == [False, True, False, True]
    assert begun == [NEAR, NEAR, FAR]


def test_candidates_are_ranked_by_the_advantage_of_hand_computed_values():
    """V is 0.5 in states in which the agent looks up, else 0.25; gamma 0.5 per action."""

    class Values:
        mode, gamma, discount_per = "value", 0.5, "action"

        def values(self, observations, actions=None):
            return np.array([0.5 if " up " in text else 0.25 for text in observations])

    said = ['["move forward"]', '["turn left"]', '["turn left", "move forward"]', "no"]
    alternates, rollouts = iter(said * 2), Rollouts(GRID)
    policy, side = FunctionPolicy(lambda _: next(alternates)), NEAR | {"orientation": 1}
    found = sample_candidates(policy, rollouts, [NEAR, side], 4, 0, Values(), 0.5, "action")
    assert found[0].returns == (1, 0, 0, 0)
    # the goal is reached; a turn to the left; the same and a bump; nothing, counted as one action
    assert found[0].advantages == (1 - 0.5, 0.5 * 0.25 - 0.5, 0.25 * 0.25 - 0.5, 0.5 * 0.5 - 0.5)
    # a step to (1, 1); a turn upwards; that and a step onto the goal; nothing
    assert found[1].returns == (0, 0, 0.5, 0)
    assert found[1].advantages == (
        0.5 * 0.25 - 0.25, 0.5 * 0.5 - 0.25, 0.5 - 0.25, 0.5 * 0.25 - 0.25
    )  # fmt: skip
    assert [c.state for c in found] == [NEAR, side]
