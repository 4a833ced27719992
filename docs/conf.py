"""How Sphinx makes a site of these pages and of the docstrings: `make docs`."""

import logging
import re
from functools import partial
from importlib import import_module

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import lactchain

SOURCE = "https://github.com/lactchain/lactchain/blob/main/"

# On processors that reckon in bfloat16 it warns of a kernel of its own that is not installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

project = "LactChain"
copyright = "the LactChain developers"
release = lactchain.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_extra_path = ["episode.gif"]
myst_heading_anchors = 4
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True


class PublicNames(SphinxDirective):
    """The public names of the package with their docstrings, by the modules that they are in."""

    def run(self) -> list[nodes.Node]:
        """The sections, one for each module."""
        homes: dict[str, list[str]] = {}
        for name in lactchain.__all__:
            homes.setdefault(getattr(lactchain, name).__module__, []).append(name)
        lines: list[str] = []
        for module, names in sorted(homes.items()):
            told = (import_module(module).__doc__ or "").partition("\n")[0]
            lines += [module, "=" * len(module), "", told, "", f".. currentmodule:: {module}", ""]
            for name in names:
                if isinstance(getattr(lactchain, name), type):
                    lines += [f".. autoclass:: {name}", "   :members:", ""]
                else:
                    lines += [f".. autofunction:: {name}", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app) -> None:
    """Sphinx calls this."""
    app.add_directive("public-names", PublicNames)
    app.connect("source-read", _published)
    kept: dict[str, list[str]] = {}
    app.connect("autodoc-process-docstring", partial(_keep, kept), priority=400)
    app.connect("autodoc-process-docstring", partial(_as_text, kept), priority=600)


def _published(app, name: str, source: list[str]) -> None:
    """Links to files of the repository lead to where it is published."""
    source[0] = re.sub(r"\]\(\.\./", f"]({SOURCE}", source[0])


def _keep(kept: dict, app, what: str, name: str, thing, options, lines: list[str]) -> None:
    """Of fields napoleon would take all before a colon for a type (9.0): that stays undone."""
    if what == "attribute":
        kept[name] = list(lines)


def _as_text(kept: dict, app, what: str, name: str, thing, options, lines: list[str]) -> None:
    """Headings as in Gymnasium's docstrings, lists under a sentence, and code in backquotes."""
    found: list[str] = []
    for line in re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(kept.pop(name, lines))).split(
        "\n"
    ):
        begins = line.startswith("- ") and found and found[-1][:2] not in ("", "- ", "  ")
        found += [""] * bool(begins)
        found += ["", f".. rubric:: {line[3:]}", ""] if line.startswith("## ") else [line]
    lines[:] = found
