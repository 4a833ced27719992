"""Worlds draw themselves in pixels, and episodes become moving pictures."""

from dataclasses import replace

import gymnasium as gym
import key_corridor  # noqa: F401  registers
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from PIL import Image, ImageColor

import lactchain.worlds  # noqa: F401  registers
from lactchain import EnvironmentConfig, Episode, GridWorld, LanguageEnv, make_language_env
from lactchain_extras.canvas import AGENT, CELL, FILLS, FLAG, PAPER, WALL
from lactchain_extras.films import Frame, film, write_gif
from lactchain_extras.wordle.env import KINDS

GRID = EnvironmentConfig(kwargs={"size": 3, "walls": [(1, 0)]})
STATE = {"x": 0, "y": 1, "orientation": 1, "goal_x": 2, "goal_y": 2}
OURS = [env_id for env_id in gym.registry if env_id.startswith("lactchain/")]
MADE = {env_id: gym.make(env_id, disable_env_checker=True) for env_id in OURS}
DRAWN = [env_id for env_id, env in MADE.items() if "rgb_array" in env.metadata["render_modes"]]


@pytest.mark.parametrize("env_id", DRAWN)
def test_pixels_are_as_gymnasium_has_them_and_follow_the_state(env_id):
    env = gym.make(env_id, render_mode="rgb_array", disable_env_checker=True)
    frames = []
    for _ in range(2):
        env.reset(seed=3)
        frames.append(env.render())
        for action in range(4):
            env.step(action % env.action_space.n)
            frames.append(env.render())
    assert all(f.dtype == np.uint8 and f.ndim == 3 and f.shape[2] == 3 for f in frames)
    assert all(map(np.array_equal, frames[:5], frames[5:]))
    assert not all(np.array_equal(frames[0], frame) for frame in frames)


BOARD = {"guesses": ["about", "zzz"], "feedback": ["gbbby", ""]}
MARKS = {(n + 0.1, 0.1): FILLS[KINDS[mark]] for n, mark in enumerate("gbbby")}
MAZE = {"layout": ["00", "10"], "goal": (0, 1)}
SHOWN = {
    "a grid": (GRID.id, GRID.kwargs, STATE, {
        (1.5, 0.5): WALL, (0.5, 0.5): PAPER, (1.5, 1.5): PAPER, (0.75, 1.5): AGENT,
        (0.25, 1.5): PAPER, (2.45, 2.35): FLAG,
    }),
    "a grid, looking back": (GRID.id, GRID.kwargs, STATE | {"orientation": 3}, {
        (0.25, 1.5): AGENT, (0.75, 1.5): PAPER,
    }),
    "a maze": ("lactchain/Maze-v0", MAZE, {"row": 1, "column": 1}, {
        (1.5, 1.5): AGENT, (0.5, 1.5): WALL, (0.5, 0.5): PAPER, (1.45, 0.35): FLAG,
    }),
    "a board": ("lactchain/Wordle-v0", {}, BOARD, MARKS | {(0.5, 1.5): WALL, (0.5, 2.5): PAPER}),
}  # fmt: skip


@pytest.mark.parametrize(("env_id", "kwargs", "state", "colours"), SHOWN.values(), ids=SHOWN)
def test_a_world_shows_what_is_in_its_places(env_id, kwargs, state, colours):
    env = gym.make(env_id, render_mode="rgb_array", **kwargs)
    env.reset(options={"state": state})
    pixels = env.render()
    for (x, y), name in colours.items():  # in cells
        colour = tuple(pixels[round(y * CELL), round(x * CELL)].tolist())
        assert colour == ImageColor.getrgb(name), (x, y)


def test_a_film_has_a_frame_for_the_start_and_for_each_action():
    completions = ['["move forward", "turn left"]', "no", '["turn left", "move forward"]']
    frames = film(GRID, Episode(0, STATE), completions)
    captions = ["start", "1: move forward", "1: turn left", "2: no chain", "3: turn left"]
    assert [frame.caption for frame in frames] == [*captions, "3: move forward"]
    env = make_language_env(replace(GRID, kwargs=GRID.kwargs | {"render_mode": "rgb_array"}))
    env.reset(seed=0, options={"state": STATE})
    drawn = [env.env.render()] + [env.step(text) and env.env.render() for text in completions]
    for number, pixels in zip((0, 2, 3, 5), drawn, strict=True):
        assert np.array_equal(frames[number].pixels, pixels)
    assert np.array_equal(frames[3].pixels, frames[2].pixels)


def test_captions_hold_anything_that_a_model_says(tmp_path):
    pixels = np.zeros((20, 20, 3), np.uint8)
    hostile = "\x1b[31m\n\u202e\ud800" + "w" * 10_000
    write_gif(tmp_path / "a.gif", {hostile: [Frame(pixels, hostile)]})
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.width == 180


def test_a_world_whose_states_are_replayed_is_filmed_from_one_of_them(monkeypatch):
    def bare(render_mode="rgb_array"):
        world = GridWorld(**GRID.kwargs, render_mode=render_mode)
        unlisted = dict.fromkeys(("get_state", "set_state", "states", "starts", "model"))
        return LanguageEnv(world, replace(world.text_view(), **unlisted))

    monkeypatch.setitem(gym.registry, "films/Bare-v0", EnvSpec("films/Bare-v0", bare))
    left, rest = '["turn left"]', '["move forward", "turn left"]'
    config = EnvironmentConfig("films/Bare-v0", max_chain_length=2)
    frames = film(config, Episode(1, {"seed": 1, "played": [1]}), [rest])
    whole = film(GRID, Episode(1), [left, rest])[1:]
    assert len(frames) == len(whole) == 3
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(frames, whole, strict=True))


def test_films_stand_side_by_side_and_the_shorter_one_waits(tmp_path):
    def frames(*shades):
        return [Frame(np.full((20, 300, 3), shade, np.uint8), str(shade)) for shade in shades]

    write_gif(tmp_path / "a.gif", {"left": frames(0, 100, 200), "right": frames(50)})
    with Image.open(tmp_path / "a.gif") as picture:
        assert (picture.n_frames, picture.width) == (3, 2 * 320)
        shown = []
        for number in range(3):
            picture.seek(number)
            row = picture.convert("RGB").crop((0, 50, 640, 51))
            shown.append((row.getpixel((160, 0))[0], row.getpixel((480, 0))[0]))
    assert shown == [(0, 50), (100, 50), (200, 50)]
