"""A real browser for the tests of the explorer: the system's Chromium, driven by Playwright.

Beside it what a page should say: two seeds of a pipeline on a small grid, read from their folders.
"""

import json
import shutil
from contextlib import contextmanager
from functools import cache, cached_property

import pytest
from explorer_runs import GridRun
from run_folders import play

from lactchain import read_pairs, read_trajectories, write_trajectories
from lactchain.data.evaluations import read_episodes
from lactchain_extras.explorer.inspections import read_inspection

FACING = ("up", "right", "down", "left")
NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW = "apt-get install chromium, pip install -e '.[dev]'"


@contextmanager
def chromium():
    """A headless browser; skips where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no Chromium on this machine: {HOW}")
    api = pytest.importorskip("playwright.sync_api", reason=f"no Playwright: {HOW}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page opened from disk, what it said (errors too), and the addresses it asked for."""

    def __init__(self, browser, path, width=1400, height=900, scheme="light", **options) -> None:
        size = {"width": width, "height": height}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, **options)
        self.page, self.messages, self.requests = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog {dialog.message}"))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("body[data-ready=yes]", timeout=30_000)

    def open(self, screen: str) -> "Visit":
        """Goes to a screen by its tab; the visit itself."""
        self.page.click(f"#tab-{screen}")
        return self

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def address(self) -> str:
        """The page's own, which `page.url` follows a moment later."""
        return self.ask("location.href")

    def ask(self, expression: str):
        """What the page's own JavaScript says."""
        return self.page.evaluate(expression)

    def thread_clock(self):
        """A function that tells how many seconds the page's thread has worked so far."""
        session = self.context.new_cdp_session(self.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def worked() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

        return worked

    def close(self) -> None:
        """Closes the page; it must have been quiet, and asked for nothing but itself."""
        self.context.close()
        assert self.messages == []
        assert len(self.requests) == 1


def choose(visit, state) -> None:
    """Clicks a goal, and then the side of a cell."""
    cell, _, goal = label(state).partition(", goal")
    visit.page.locator(f".goals .hit[aria-label^='goal{goal}']").click()
    visit.page.locator(f".split.map > div > .board .hit[aria-label^='{cell}']").click()


def label(state) -> str:
    """A state as the page writes it."""
    goal = f"goal at ({state['goal_x']}, {state['goal_y']})"
    return f"({state['x']}, {state['y']}) facing {FACING[state['orientation']]}, {goal}"


def shown(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}".replace("-", "−")


def number_of(text) -> float:
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


class Folder:
    """What a run folder says, read without the code of the page; states by their names there."""

    def __init__(self, directory) -> None:
        self.directory = directory
        for read in (self.results, self.evaluated, self.answers, self.candidates, self.pairs):
            setattr(self, read.__name__, cache(read))

    def stage(self, number, name):
        return self.directory / f"round_{number}/{name}"

    def results(self, number=2):
        """Of the evaluation of a round from each start state."""
        episodes = read_episodes(self.stage(number, "evaluation/episodes.json"))
        return {label(result.state): result for result in episodes}

    def evaluated(self, number=2):
        """The episodes of the evaluation of a round."""
        episodes = read_trajectories(self.stage(number, "evaluation/trajectories"))
        return {label(episode.infos[0]["state"]): episode for episode in episodes}

    def answers(self, number):
        rows = read_inspection(self.stage(number, "inspection")).answers.to_pylist()
        return {label(json.loads(row["state"])): row for row in rows}

    def candidates(self, number):
        return read_inspection(self.stage(number, "inspection")).candidates.to_pylist()

    def pairs(self, number):
        return read_pairs(self.stage(number, "simpo/pairs"))

    @cached_property
    def played(self):
        folders = self.directory.glob("round_*/*/trajectories")
        return [episode for folder in folders for episode in read_trajectories(folder)]


def two_seeds(folder):
    """Two seeds; the critic of the first one has learnt from episodes that run into walls."""
    run, other = GridRun(folder / "grid", skill=0.7), GridRun(folder / "other", skill=0.3, seed=1)
    ahead = run.env.grammar.render([0, 0, 0])
    stuck = [play(run.env, lambda _: ahead, n, state) for n, state in enumerate(run.states[:40])]
    write_trajectories(run.directory / "round_1/critic/trajectories/0.parquet", stuck)
    return Folder(run.directory), Folder(other.directory)
