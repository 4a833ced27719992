"""A real browser for the tests of the explorer: the system's Chromium, driven by Playwright."""

import shutil
from contextlib import contextmanager

import pytest

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
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        self.page, self.messages, self.requests = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog {dialog.message}"))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("body[data-ready=yes]", timeout=30_000)

    def open(self, screen: str) -> None:
        """Goes to a screen by its tab."""
        self.page.click(f"#tab-{screen}")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

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
    goal = f"goal at ({state['goal_x']}, {state['goal_y']})"
    visit.page.locator(f".goals .hit[aria-label^='{goal}']").click()
    facing = ("up", "right", "down", "left")[state["orientation"]]
    cell = f"({state['x']}, {state['y']}) facing {facing}"
    visit.page.locator(f".split.map > div > .board .hit[aria-label^='{cell}']").click()


def four_digits(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
