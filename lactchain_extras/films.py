"""Episodes as moving pictures: played again in a world that draws itself, and written as a GIF."""

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RenderCollection
from PIL import Image, ImageDraw, ImageFont

from lactchain.config.settings import EnvironmentConfig, known_fields
from lactchain.data.episodes import Episode
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError
from lactchain.inspection.run_view import RunView
from lactchain.storage.files import atomic_write
from lactchain.storage.manifests import read_run_file
from lactchain_extras.canvas import pixels as pixels  # of worlds that are asked for them
from lactchain_extras.explorer.summary import before_and_after

FRAME_MS, LAST_MS = 350, 2_000
MAX_FRAMES = 48
MOST_LETTERS = 100
log = logging.getLogger(__name__)
MARGIN, LINE_HEIGHT, LEAST_WIDTH = 10, 16, 160  # pixels, around and above each picture


class Frame(NamedTuple):
    """What is seen after an action."""

    pixels: np.ndarray  # (H, W, 3), 0 to 255
    caption: str = "start"  # which completion it belongs to, and what was done


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
        got = f"{environment.id}, which has no render_mode rgb_array"
        what = f"expected a world that draws itself, got {got}"
        raise ConfigError(f"environment.id: {what}; give it one for moving pictures")
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
            captions = [f"{number}: {action}" for action in done]
            captions[-1] += " (solved)" if info["success"] else ""
            frames += map(Frame, drawn, captions)
    except gym.error.DependencyNotInstalled as error:
        message = f"environment.id: {environment.id} cannot draw itself: {error}"
        raise ConfigError(message) from error
    return frames


def write_gif(path: str | Path, films: Mapping[str, Sequence[Frame]]) -> None:
    """Writes films side by side, each under its name; one that ends early stays as it is.

    Raises:
        DiskError: the file cannot be written.
    """
    length = min(MAX_FRAMES, max(map(len, films.values())))
    first, *others = (
        _picture({name: frames[min(n, len(frames) - 1)] for name, frames in films.items()})
        for n in range(length)
    )
    buffer, durations = io.BytesIO(), [FRAME_MS] * (length - 1) + [LAST_MS]
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    atomic_write(path, buffer.getvalue())


def film_run(run_dir: Path, number: int) -> None:
    """Writes RUN/episode.gif: one start state before the rounds, and after one of them.

    Of those that were failed before and are solved after it, the one that takes most actions.
    Nothing where the picture is there. One that cannot be drawn costs a line, and no run.
    """
    path = run_dir / "episode.gif"
    if path.is_file():
        return
    try:
        settings = read_run_file(run_dir / "round_0/evaluation")["config"]["environment"]
        environment = EnvironmentConfig(**known_fields(EnvironmentConfig, settings))
        both = zip(("before", "after"), before_and_after(RunView(run_dir), number), strict=True)
        films = {}
        for name, episode in both:
            start = Episode(episode.seed, episode.infos[0]["state"])
            films[name] = film(environment, start, [action.text for action in episode.actions])
        write_gif(path, films)
    except Exception as error:  # noqa: BLE001  - of whatever kind a world's drawing raises
        log.info("no episode.gif: %s", error)


def _picture(frames: Mapping[str, Frame]) -> Image.Image:
    """Pictures side by side, each below its name and its caption."""
    drawn = [Image.fromarray(frame.pixels) for frame in frames.values()]
    widths = [max(LEAST_WIDTH, pixels.width) + 2 * MARGIN for pixels in drawn]
    top, left, font = 2 * LINE_HEIGHT + MARGIN, 0, ImageFont.load_default(12)
    height = max(pixels.height for pixels in drawn) + top + MARGIN
    whole = Image.new("RGB", (sum(widths), height), "white")
    draw = ImageDraw.Draw(whole)
    for (name, frame), image, width in zip(frames.items(), drawn, widths, strict=True):
        whole.paste(image, (left + (width - image.width) // 2, top))
        for line, (text, colour) in enumerate(((name, "#1f2933"), (frame.caption, "#52606d"))):
            place = left + MARGIN, MARGIN / 2 + line * LINE_HEIGHT
            draw.text(place, _fitting(text, width - 2 * MARGIN, font), colour, font)
        left += width
    return whole


def _fitting(text: str, width: int, font: ImageFont.FreeTypeFont) -> str:
    """As much of a text as has room in a line."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])
    while font.getlength(text) > width:
        text = text[:-1]
    return text
