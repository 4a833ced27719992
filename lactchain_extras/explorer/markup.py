"""HTML that cannot be broken out of: what is not `Markup` already is escaped; script and style.

Control characters and lone surrogates, which HTML cannot hold, show as backslash escapes.
"""

import base64
import hashlib
import math
from functools import cache
from importlib.resources import files
from numbers import Number

import markupsafe
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lactchain.runs.console import plain

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


def escape(value: object) -> Markup:
    """A value as HTML: numbers with four digits or commas, `Markup` as it is, the rest as text."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return Markup("–")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return markupsafe.escape(_visible(value))
    if isinstance(value, float):
        value = round(value) if value.is_integer() or abs(value) >= 1e3 else f"{value:.4g}"
    return Markup((value if isinstance(value, str) else f"{value:,}").replace("-", "−"))


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
environment.filters["shown"] = escape


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
