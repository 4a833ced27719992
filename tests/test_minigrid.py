"""MiniGrid and BabyAI in words: what is seen, numbered tasks, the bot, and BALROG's levels."""

import json
from itertools import product

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("minigrid", reason="needs the extra minigrid")

from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT
from minigrid.core.world_object import Ball, Door, Key, Wall
from minigrid.minigrid_env import MiniGridEnv

from lactchain import ConfigError, Episode, Rollouts, language_env, make_language_env
from lactchain.config.settings import EnvironmentConfig, HeldBackConfig
from lactchain.stages.train_bc import BehaviorConfig, behavior_examples
from lactchain_extras.balrog_levels import MixedLocal

BALROG = [f"minigrid:BabyAI-MixedTrainLocal-v0/{kind}" for kind in MixedLocal.KINDS]
LOCAL = "minigrid:BabyAI-GoToLocal-v0"
LEVELS = [
    LOCAL, "minigrid:BabyAI-GoTo-v0", "minigrid:BabyAI-UnlockPickup-v0", *BALROG,
    "minigrid:MiniGrid-DoorKey-6x6-v0", "minigrid:MiniGrid-LavaGapS5-v0",
    "minigrid:MiniGrid-Dynamic-Obstacles-5x5-v0", "minigrid:MiniGrid-Fetch-5x5-N2-v0",
]  # fmt: skip


def task(number, *played):
    return {"state": {"task": number, "played": [*played]}}


def played_at_random(env, seed, count=30):
    """States of random play, and the texts that stated them."""
    text, info = env.reset(options=task(seed))
    draws, over = np.random.default_rng(seed), False
    for action in draws.integers(len(env.grammar.action_names), size=count).tolist():
        if over:
            break
        yield info["state"], text
        text, _, terminated, truncated, info = env.step(env.grammar.render([action]))
        over = terminated or truncated


def test_a_scene_drawn_by_hand_in_all_words():
    env = language_env("minigrid:MiniGrid-Empty-8x8-v0")
    env.reset(seed=0)
    level = env.env.unwrapped.level
    level.agent_pos, level.agent_dir, level.mission = (3, 5), 3, "do it"  # facing north
    for (x, y), thing in {
        (3, 2): Ball("red"), (5, 4): Door("blue", is_locked=True), (2, 3): Key("grey"),
        (1, 5): Wall(),
    }.items():  # fmt: skip
        level.grid.set(x, y, thing)
    level.carrying = Key("yellow")
    seen = env.view.describe(env.env, env.env.unwrapped._observation(), {})
    places = "a locked blue door {}, a grey key {}, a red ball {}".format
    assert seen["seen"] == places("1 ahead and 2 right", "2 ahead and 1 left", "3 ahead")
    assert seen["seen_around"] == places("2 east and 1 north", "1 west and 2 north", "3 north")
    assert seen["seen_at"] == places("at (5, 4)", "at (2, 3)", "at (3, 2)")
    door_and_key = "locked blue door 1 ahead 2 right, grey key 2 ahead 1 left"
    assert seen["near"] == f"; {door_and_key}, red ball 3 ahead"
    assert (seen["ahead"], seen["left"], seen["right"]) == (2, 1, 3)
    assert (seen["x"], seen["y"], seen["facing"]) == (3, 5, "north")
    assert seen["carrying"] == "a yellow key"
    for level.mission, near, ahead in (
        ("go to the red ball", f"red ball 3 ahead; {door_and_key}", 4),
        ("open a door, then pick up the grey key", f"{door_and_key}; red ball 3 ahead", 2),
    ):
        seen = env.view.describe(env.env, env.env.unwrapped._observation(), {})
        assert (seen["near"], seen["ahead"]) == (near, ahead)


@pytest.mark.parametrize("level_id", LEVELS)
def test_words_name_what_minigrids_own_image_shows(level_id):
    env = language_env(level_id, template="{seen}", max_chains=100)
    for seed in range(3):
        for _, text in played_at_random(env, seed):
            level = env.env.unwrapped.level
            image = MiniGridEnv.gen_obs(level)["image"]
            cells = zip(product(range(7), repeat=2), image.reshape(-1, 3).tolist(), strict=True)
            shown = [
                f"{IDX_TO_COLOR[color]} {IDX_TO_OBJECT[kind]}"
                for (column, row), (kind, color, _) in cells
                if IDX_TO_OBJECT[kind] in ("ball", "box", "key", "goal", "lava", "door")
                and (column, row) != (3, 6)
            ]
            text = text.partition(" Some action")[0]
            named = [] if text == "nothing" else text.split(", ")
            assert len(named) == len(shown)
            assert all(any(thing in name for name in named) for thing in shown)


@pytest.mark.parametrize("level_id", LEVELS)
def test_a_state_that_is_put_back_goes_on_alike(level_id):
    env, again = (language_env(level_id, max_chains=100) for _ in range(2))
    for state, text in [*played_at_random(env, 5, 40)][::7]:
        said, info = again.reset(options={"state": json.loads(json.dumps(state))})
        assert info["state"] == state
        assert said == text.replace(" Some action changed nothing.", "")
        assert [*played_at_random(env, 5)] == [*played_at_random(again, 5)]


@pytest.mark.parametrize("template", [None, "brief", "relative"])
def test_what_changes_nothing_leaves_the_state_and_says_so(template):
    env = language_env(LOCAL, template=template)
    env.reset(options=task(0))
    text, _, _, _, info = env.step('["drop", "turn left", "toggle"]')
    assert info["bumped"] == [True, False, True] and info["state"]["played"] == [0]
    assert text.endswith(" Some action changed nothing.")


@pytest.mark.parametrize("level_id", [LOCAL, *BALROG])
def test_the_bot_accomplishes_every_mission_for_a_reward_of_one(level_id):
    rollouts = Rollouts(EnvironmentConfig(level_id, max_chains=32), num_envs=4)
    bot = rollouts.env.view.policies["bot"](rollouts.env)
    starts = rollouts.env.start_states()[:12]
    episodes = rollouts.play(bot, [Episode(0, state) for state in starts])
    assert all(e.infos[-1]["success"] and e.episode_return == 1.0 for e in episodes)
    alone = Rollouts(EnvironmentConfig(level_id, max_chains=32), num_envs=1)
    again = alone.play(bot, [Episode(0, state) for state in starts])
    assert [e.actions for e in again] == [e.actions for e in episodes]


def test_a_mission_that_fails_is_no_success():
    env = language_env("minigrid:MiniGrid-LavaGapS5-v0")
    env.reset(options=task(0))
    _, reward, terminated, _, info = env.step('["go forward", "go forward", "go forward"]')
    if not terminated:
        _, reward, terminated, _, info = env.step('["turn right", "go forward", "go forward"]')
    assert (terminated, reward, info["success"]) == (True, 0.0, False)


@pytest.mark.parametrize("level_id", BALROG)
def test_missions_of_balrog_are_of_their_kind_and_name_no_pair_that_is_kept_for_tests(level_id):
    env = language_env(level_id, template="{mission}")
    missions = {env.reset(options=state)[0] for state in map(task, range(40))}
    beginnings = {"goto": "go to", "pickup": "pick up", "open": "open", "putnext": "put "}
    kind = level_id.rpartition("/")[2]
    wanted = beginnings.get(kind, ("pick up", "go to"))
    assert all(mission.startswith(wanted) for mission in missions) and len(missions) > 4
    assert not any(pair in mission for mission in missions for pair in MixedLocal.EXCLUDED)
    if kind == "pick_up_seq_go_to":
        assert all("go to" in mission and "pick up" in mission for mission in missions)


def test_of_joined_kinds_each_task_draws_one():
    env = language_env("minigrid:BabyAI-MixedTrainLocal-v0/goto+pickup", template="{mission}")
    missions = [env.reset(options=task(n))[0] for n in range(80)]
    assert 20 < sum(mission.startswith("go to") for mission in missions) < 60
    assert all(mission.startswith(("go to", "pick up")) for mission in missions)


def test_every_level_of_babyai_has_words_and_the_bot(capsys):
    ids = [level for level in gym.registry if level.startswith("BabyAI-")]
    assert len(ids) >= 96
    for level in ids[::4]:
        env = language_env(f"minigrid:{level}")
        assert env.reset(options=task(1))[0].startswith("Mission: ")
        assert env.view.competent == "bot"
    assert capsys.readouterr().out == ""


def test_a_warm_start_clones_the_bot_on_tasks_that_are_practised():
    held_back = HeldBackConfig(share=0.5, by=["task"])
    config = EnvironmentConfig(LOCAL, {"num_tasks": 10}, held_back=held_back, template="brief")
    env = make_language_env(config)
    examples = behavior_examples(env, BehaviorConfig(40, competent_fraction=1.0), seed=0)
    assert len(examples) == 40 and len({action.text for _, action in examples}) > 5
    practised = {env.reset(options=task(n))[0] for n in range(10) if task(n)["state"] not in
                 env.held_back}  # fmt: skip
    kept = {env.reset(options=task(n))[0] for n in range(10)} - practised
    assert {text for text, _ in examples} & practised
    assert not {text for text, _ in examples} & kept


def test_scenes_show_where_everything_is():
    env = language_env(LOCAL)
    env.reset(options=task(3, 0, 0))
    scene = env.view.picture.look(task(3, 0, 0)["state"])
    level = env.env.unwrapped.level
    assert scene.agent == (*level.agent_pos, (level.agent_dir + 1) % 4)
    things = [mark for mark in scene.marks if mark.kind == "item"]
    assert len(things) == sum(c is not None and c.type != "wall" for c in level.grid.grid)
    assert env.view.picture.look({"task": 3, "played": [99]}) is None


@pytest.mark.parametrize(("level_id", "message"), [
    ("minigrid:BabyAI-Nothing-v0", "BabyAI-Nothing"),
    ("minigrid:BabyAI-MixedTrainLocal-v0/dance", "expected BabyAI-MixedTrainLocal-v0/"),
    ("minigrid:BabyAI-MixedTrainLocal-v0/goto+open", "some but open joined by"),
])  # fmt: skip
def test_an_unknown_level_is_refused(level_id, message):
    with pytest.raises(ConfigError, match=message):
        language_env(level_id)


@pytest.mark.parametrize(
    "state", [None, {}, {"task": 999, "played": []}, {"task": 0, "played": 3}, {"task": True}]
)
def test_what_is_no_state_is_refused(state):
    env = language_env(LOCAL)
    with pytest.raises(ValueError, match="state: expected a task below 500"):
        env.env.reset(options={"state": state or {}})
