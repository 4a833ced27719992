"""`report.html`: a run folder in one page that opens from disk, without network.

Reads only what the folder holds, needs no model, and leaves out what is not there yet, so that a
running job can be looked at too. What is not `Markup` already is escaped. Control characters and
lone surrogates, which HTML cannot hold, show as backslash escapes.
"""

import base64
import hashlib
import json
import logging
import math
import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from numbers import Number
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lactchain.config.parsing import load, to_yaml
from lactchain.data.preferences import DROP_REASONS
from lactchain.errors import ConfigError, DataError
from lactchain.inspection.run_view import RunView, open_run
from lactchain.runs.console import plain
from lactchain.runs.folder import identity_of, redact
from lactchain.storage.files import atomic_write
from lactchain.storage.manifests import RUN_FILE, read_run_file
from lactchain_extras.comparing import FIGURES, figure, known_figures, names, settings
from lactchain_extras.explorer.contents import Contents, contents
from lactchain_extras.explorer.inspections import left_out
from lactchain_extras.explorer.summary import (
    chosen_round,
    state_label,
    status,
    succeeded,
    summarise,
    words,
)
from lactchain_extras.explorer.tables import pack

# As `FIGURES`.
COMPARED = {
    "success": FIGURES["success"],
    "return": ("last/episode_return", "episode_return"),
    "critic's R², round 1": ("round_1/critic_r2", "critic_r2"),
    "critic's ρ, round 1": ("round_1/critic_rho", "critic_rho"),
    "pairs": ("num_pairs",),
    "environment steps": ("num_env_steps",),
    "CPU-seconds": ("time/cpu_seconds",),
}
VENDOR = ("preact.umd.js", "preact_hooks.umd.js", "htm.umd.js", "uPlot.iife.min.js")
APP = (
    "data.js", "scene.js", "parts.js", "charts.js", "episodes.js", "states.js", "pairs.js",
    "critic.js", "tokens.js", "curves.js", "compare.js", "search.js", "app.js",
)  # fmt: skip
# A page that is passed on has to keep them; Apache's is long and known: where it stands will do.
LICENCES = {"Preact": "preact", "uPlot": "uplot"}
APACHE = (
    "htm:\nApache License, Version 2.0: lactchain_extras/explorer/static/vendor/LICENSE.htm.txt"
)
SAMPLED = "A sample of {asked:,} of {of:,} start states, in all rounds."
STATUS, NOW = '<span id="status">{}</span>', "%d %b %Y at %H:%M:%S"
SCREENS = ["summary", "states", "episodes", "pairs", "critic", "tokens", "curves", "compare"]
SCREENS += ["search", "run"]
log = logging.getLogger(__name__)


def _visible(value: object) -> object:
    return value if isinstance(value, Markup | Number) else plain(str(value)).plain


environment = Environment(
    loader=PackageLoader("lactchain_extras.explorer"),
    autoescape=True,
    finalize=_visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(
    run_dir: str | Path,
    output: str | Path | None = None,
    beside: Sequence[str | Path] = (),
    under_way: str = "",
    anew: bool = True,
) -> Path:
    """Writes the page of a run folder, with others `beside` it; returns its path.

    If not `anew`, only what the page that there is tells of how far an unfinished run is.
    """
    path, view = Path(output or Path(run_dir) / "report.html"), open_run(run_dir)
    if anew:
        page = render(view, [open_run(other) for other in beside], under_way=under_way)
    else:
        line, there = _status(view, under_way), STATUS.format(".*?")
        page = re.sub(there, lambda _: line, path.read_text(encoding="utf-8"), count=1)
    atomic_write(path, page)
    return path


def render(
    view: RunView, beside: Sequence[RunView] = (), screen: str = "summary", under_way: str = ""
) -> str:
    """The page of a run as HTML, with other runs beside it.

    Args:
        screen: the one of `SCREENS` that the page opens on.
        under_way: the stage that has just begun; empty: the folder says what is.
    """
    if screen not in SCREENS:
        raise ValueError(f"screen: expected one of {SCREENS}, got {screen!r}")
    summary = summarise(view)
    held = contents(view, beside, filter(None, (summary.before, summary.after)))
    commit = view.environment.get("git_commit")
    facts = [] if view.summary is None else ["finished"]  # else a line that is mended tells it
    facts += [view.environment.get("device"), f"commit {str(commit)[:10]}" if commit else None]
    missed = [*left_out(view), *(f"{o.name}/{name}" for o in beside for name in left_out(o))]
    facts += [f"{name} is damaged or not whole, not shown" for name in missed]
    facts += [f"{name} is not what the run was given" for name in _changed_settings(view)]
    unknown = [name for name in view.environment.get("imports") or [] if name not in sys.modules]
    facts += [f"drawn by lactchain report --import {','.join(unknown)}"] if unknown else []
    sides = (("before any round", summary.before), ("after", summary.after))
    embedded = _embedded(view, beside, held, screen)
    text = environment.get_template("page.html").render(
        view=view,
        facts=[*filter(None, facts)],
        summary=summary,
        words=embedded["words"] if summary.rounds else "",
        status=_status(view, under_way),
        now=time.strftime(NOW),
        failed_filter=json.dumps({"filter": {"outcome": "failed", "stage": "evaluation"}}),
        both=[(name, t, held.row_of(t)) for name, t in sides if t is not None],
        succeeded=succeeded,
        state_label=lambda state: state_label(view, state),
        # JSON that can stand in a script element
        embedded=Markup(json.dumps(embedded).replace("<", "\\u003c").replace("&", "\\u0026")),
        tables={name: Markup(pack(columns)) for name, columns in held.tables.items()},
        **assets(),
    )
    return text.lstrip()


def _changed_settings(view: RunView) -> list[str]:
    """Names of each `config.yaml`, of a run and its parts, that tells of another than its run."""
    changed = []
    for file in sorted(view.directory.rglob("config.yaml")):
        with suppress(DataError):  # of a part whose own file is damaged, nobody knows
            given = read_run_file(file.parent).get("config")
            if given is not None and _identity_in(file) != identity_of(given):
                changed.append(file)
                message = "%s: changed since, or damaged; what the run was given is in %s"
                log.warning(message, file, file.with_name(RUN_FILE))
    return [str(file.relative_to(view.directory)) for file in changed]


def _identity_in(file: Path) -> str | None:
    """What the settings of a file compute; None of a file that cannot be read."""
    with suppress(ConfigError):
        return identity_of(redact(load(file)))
    return None


def _status(view: RunView, under_way: str) -> Markup:
    """How far an unfinished run is, and since when that is true."""
    line = status(view, under_way)
    if line.startswith("Under way"):
        look = shlex.join(["lactchain", "report", "--run_dir", str(view.directory)])
        line += f" A run that is killed cannot say so here; this looks again: {look}"
    return Markup(STATUS).format(line and _visible(f"{time.strftime(NOW)}: {line}"))


def _embedded(
    view: RunView, beside: Sequence[RunView], held: Contents, screen: str
) -> dict[str, Any]:
    """What the page's script has to know besides the tables."""
    runs = [view, *beside]
    sizes, why = view.sizes["settings"], view.sizes["why"]  # that followed from the world
    # Of very many start states a pipeline asks a few.
    asked = next((found.meta for found in reversed(view.inspections.values())), {})
    return {
        "picture": _picture(view),
        "runs": names(runs),
        "compared": [[name, [_compared(run, name) for run in runs]] for name in COMPARED],
        "reasons": DROP_REASONS,
        "sample": _sample(view, held),
        "chosen": [chosen_round(run) for run in runs],
        "left_out": held.left_out,
        "settings": settings(runs),
        "asked": SAMPLED.format(**asked) if asked.get("sampled") else "",
        "words": words(view),
        "valued": held.valued,
        "config": to_yaml(view.config),
        "sizes": [[name, json.dumps(v), str(why.get(name, ""))] for name, v in sizes.items()],
        "environment": json.dumps(view.environment, indent=2),
        "screen": screen,
    }


def _picture(view: RunView) -> dict[str, Any] | None:
    """The board of the world; with fog where the actor saw no more than what is around it."""
    picture = view.picture
    if picture is None:
        return None
    has_fog = bool(picture.fog_unless) and f"{{{picture.fog_unless}}}" not in view.env.view.template
    size = {"width": picture.width, "height": picture.height}
    return {**size, "background": picture.background, "fog": has_fog}


def _sample(view: RunView, held: Contents) -> str:
    """What of the episodes is on the page, where it is not all of them."""
    if (shown := len(held.trajectories)) < held.num_episodes:
        what = f"A sample: {shown:,} of {held.num_episodes:,} episodes, failures first"
        why = "since all of them would make a page of more than 20 MB"
        return f"{what}, {why}. The run folder has all."
    if view.summary is None and view.stages:
        return "The episodes that critics learn from are added when the run is finished."
    return ""


def _compared(view: RunView, name: str) -> Any:
    """A figure of `COMPARED`; None where a run has none.

    The mean return of a finished pipeline is that of its round, which its metrics have.
    """
    found = figure(known_figures(view), COMPARED[name])
    if found is None and name == "return":
        points = zip(*view.curves().get("eval/episode_return", ([], [])), strict=True)
        found = dict(points).get((view.summary or {}).get("round"))
    # JSON has no NaN and no infinities: a page with one would not open.
    return found if found is None or math.isfinite(found) else None


@cache
def assets() -> dict[str, Markup]:
    """Script and style; the page's policy allows the script by its hash alone."""
    notices = [f"{name}:\n{static('vendor', f'LICENSE.{f}.txt')}" for name, f in LICENCES.items()]
    notice = "\n\n".join(notice.replace("*/", "* /").strip() for notice in (*notices, APACHE))
    libraries, own = (
        "\n".join(static(folder, name) for name in names)
        for folder, names in (("vendor", VENDOR), ("app", APP))
    )
    script = f'/*! {notice} */\n{libraries}\n(() => {{\n"use strict";\n{own}\n}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = static("vendor", "uPlot.min.css") + static("app.css")
    found = {"script": script, "script_hash": f"sha256-{digest}", "style": style}
    return {name: Markup(text) for name, text in found.items()}


def static(*path: str) -> str:
    """The text of a file in static/."""
    return files("lactchain_extras.explorer").joinpath("static", *path).read_text(encoding="utf-8")
