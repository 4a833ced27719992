"""The pages that people read, taken apart: prose, blocks of code, tables, headings, links."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Page:
    """A page of Markdown, by its path from the repository on."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    @cached_property
    def sections(self) -> dict[str, str]:
        """The prose below each heading."""
        found = re.findall(r"^#+ (.+?)\n(.*?)(?=^#+ |\Z)", self.prose, re.MULTILINE | re.DOTALL)
        return dict(found)

    @property
    def anchors(self) -> set[str]:
        """What a link may name behind #, as GitHub makes it of a heading."""
        kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in self.sections)
        return {heading.replace(" ", "-") for heading in kept}

    @property
    def links(self) -> list[tuple[str, str]]:
        """The pages and anchors that links lead to; a page of '' is this one."""
        targets = re.findall(r"\]\((?!http)([^)\s]+)\)", self.prose)
        return [target.partition("#")[::2] for target in targets]

    def blocks(self, language: str) -> list[str]:
        found = re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)
        return [text for name, text in found if name == language]

    def table(self, section: str, heading: str) -> list[list[str]]:
        """The rows of the table in a section whose heading begins so."""
        lines = iter(self.sections[section].splitlines())
        next(line for line in lines if line.startswith(f"| {heading} |"))
        next(lines)
        rows = []
        while (line := next(lines, "")).startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        return rows

    def __str__(self) -> str:
        return self.path


def names(cell: str) -> list[str]:
    """The words in a cell of a table that are set as code."""
    return re.findall(r"`(\w+)`", cell)


README = Page("README.md")
MANUAL = [Page(path.relative_to(ROOT).as_posix()) for path in sorted(ROOT.glob("docs/*.md"))]
PAGES = [README, Page("CONTRIBUTING.md"), Page("weights/README.md"), *MANUAL]
RECORDS = [Page("CHANGELOG.md")]
RECORDS += [Page(f"benchmarks/{name}.md") for name in ("RESULTS", "RESULTS_ARCHIVE", "LOG")]
"""What was true when it was written: only their links are checked."""
BY_PATH = {page.path: page for page in PAGES}
