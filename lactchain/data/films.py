"""Episodes as moving pictures: played again in a world that draws itself, and written as a GIF."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RenderCollection
from PIL import Image, ImageDraw, ImageFont

from lactchain.data.episodes import Episode
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError
from lactchain.files import atomic_write
from lactchain.settings import EnvironmentConfig
from lactchain.types import Action, Policy

FRAME_MS, LAST_MS = 350, 2_000
MAX_FRAMES = 48
MOST_LETTERS = 100
MARGIN, LINE_HEIGHT, LEAST_WIDTH = 10, 16, 160  # pixels, around and above each picture


@dataclass(frozen=True)
class Frame:
    """What is seen after an action.

    Attributes:
        pixels: (H, W, 3), 0 to 255.
        caption: which completion it belongs to, and what was done.
    """

    pixels: np.ndarray
    caption: str = "start"


class NotingPolicy:
    """A policy whose completions are kept, in the order in which they were given.

    Attributes:
        said: the completions.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        self.said: list[str] = []

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """The policy's completions to B observations."""
        actions = self.policy.act(observations, seeds)
        self.said += [action.text for action in actions]
        return actions


def film(
    environment: EnvironmentConfig, episode: Episode, completions: Iterable[str]
) -> list[Frame]:
    """The start of an episode, and what each action of its completions leads to.

    With the episode's own seed dice fall as they did.

    Raises:
        ConfigError: the world does not draw itself (`render_mode="rgb_array"`).
    """
    env = make_language_env(environment)
    world = env.env
    if "rgb_array" not in world.metadata.get("render_modes", ()):
        raise ConfigError(
            f"environment.id: expected a world that draws itself, got {environment.id}, which has"
            " no render_mode rgb_array; leave the moving picture out"
        )
    # As an argument it would not reach a world that is registered in words already.
    world.unwrapped.render_mode = "rgb_array"
    try:
        env.env = RenderCollection(world)
        env.reset(seed=episode.seed, options=episode.options)
        frames = [Frame(world.render())]
        env.env.render()  # lets go of what resetting drew
        for number, completion in enumerate(completions, start=1):
            *_, info = env.step(completion)
            drawn = env.env.render() or [frames[-1].pixels]
            done = info["executed"] if not info["invalid_action"] else ["no chain"]
            captions = [f"{number}: {said}" for said in done]
            captions[-1] += " (solved)" if info["success"] else ""
            frames += map(Frame, drawn, captions)
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"environment.id: {environment.id} cannot draw itself: {error}"
        ) from error
    return frames


def write_gif(path: str | Path, films: Mapping[str, Sequence[Frame]]) -> None:
    """Writes films side by side, each under its name; one that ends early stays as it is.

    Raises:
        DiskError: the file cannot be written.
    """
    length = min(MAX_FRAMES, max(map(len, films.values())))
    shown = [
        _side_by_side(
            [_panel(name, frames[min(n, len(frames) - 1)]) for name, frames in films.items()]
        )
        for n in range(length)
    ]
    buffer = io.BytesIO()
    durations = [FRAME_MS] * (length - 1) + [LAST_MS]
    first, *others = shown
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    atomic_write(path, buffer.getvalue())


def _panel(name: str, frame: Frame) -> Image.Image:
    """A picture below its name and its caption."""
    picture = Image.fromarray(frame.pixels)
    top = 2 * LINE_HEIGHT + MARGIN
    width = max(LEAST_WIDTH, picture.width) + 2 * MARGIN
    panel = Image.new("RGB", (width, picture.height + top + MARGIN), "white")
    panel.paste(picture, ((width - picture.width) // 2, top))
    draw = ImageDraw.Draw(panel)
    for line, (text, colour) in enumerate(((name, "#1f2933"), (frame.caption, "#52606d"))):
        place = MARGIN, MARGIN / 2 + line * LINE_HEIGHT
        draw.text(place, _fitting(text, width - 2 * MARGIN), colour, _font())
    return panel


def _side_by_side(panels: Sequence[Image.Image]) -> Image.Image:
    size = sum(panel.width for panel in panels), max(panel.height for panel in panels)
    whole, left = Image.new("RGB", size, "white"), 0
    for panel in panels:
        whole.paste(panel, (left, 0))
        left += panel.width
    return whole


def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(12)


def _fitting(text: str, width: int) -> str:
    """As much of a text as has room in a line."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])
    while _font().getlength(text) > width:
        text = text[:-1]
    return text
