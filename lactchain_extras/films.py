"""Episodes as moving pictures: played again in a world that draws itself, and written as a GIF."""

import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RenderCollection
from PIL import Image, ImageDraw, ImageFont

from lactchain.config.settings import EnvironmentConfig, known_fields
from lactchain.data.episodes import Episode
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError
from lactchain.storage.files import atomic_write
from lactchain.storage.manifests import read_run_file
from lactchain.types import Action, Policy, Trajectory
from lactchain_extras.canvas import pixels as pixels  # of worlds that are asked for them
from lactchain_extras.stages.play import PlayConfig

FRAME_MS, LAST_MS = 350, 2_000
MAX_FRAMES = 48
MOST_LETTERS = 100
log = logging.getLogger(__name__)
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
            " no render_mode rgb_array; give it one, or play without --gif"
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


@contextmanager
def filmed(config: PlayConfig, policy: Policy) -> Iterator[NotingPolicy]:
    """A game whose episode is written as a moving picture when it ends; `ConfigError` as `film`."""
    episode = Episode(config.seed)
    film(config.environment, episode, ())  # before an hour is played for nothing
    noting = NotingPolicy(policy)
    yield noting
    write_gif(config.gif, {noting.name: film(config.environment, episode, noting.said)})


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


def film_run(run_dir: Path, number: int) -> None:
    """Writes RUN/episode.gif: one start state before the rounds, and after one of them.

    Of those that were failed before and are solved after it, the one that takes most actions.
    Nothing where the picture is there. One that cannot be drawn costs a line, and no run.
    """
    if (run_dir / "episode.gif").is_file():
        return
    try:
        write_gif(run_dir / "episode.gif", _before_and_after(run_dir, number))
    except Exception as error:  # noqa: BLE001  - of whatever kind a world's drawing raises
        log.info("no episode.gif: %s", error)


def _before_and_after(run_dir: Path, number: int) -> dict[str, list[Frame]]:
    before, after = (
        read_trajectories(run_dir / f"round_{n}/evaluation/trajectories") for n in (0, number)
    )
    best = max(zip(before, after, strict=True), key=_telling)
    state = best[0].infos[0]["state"]
    played = read_run_file(run_dir / "round_0/evaluation")["config"]["environment"]
    environment = EnvironmentConfig(**known_fields(EnvironmentConfig, played))
    return {
        name: film(environment, Episode(one.seed, state), [a.text for a in one.actions])
        for name, one in zip(("before", "after"), best, strict=True)
    }


def _telling(episodes: tuple[Trajectory, Trajectory]) -> tuple[bool, int]:
    """How much the two episodes from one start state tell of what was learnt."""
    failed, solved = (not episodes[0].infos[-1]["success"], episodes[1].infos[-1]["success"])
    return failed and solved, sum(episodes[1].num_actions)


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
