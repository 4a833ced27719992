"""Bounds beside the types of config fields: kept on construction, and told by --help."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import pytest

from lactchain.config.bounds import AtLeast1, Bound, Bounded, Positive, Share
from lactchain.config.parsing import dump, parse
from lactchain.errors import ConfigError


@dataclass(frozen=True)
class Part(Bounded):
    """A part."""

    count: AtLeast1 = 3
    """How many."""
    rate: Positive = 0.5
    """How fast."""
    share: Share = 0.0
    """How much."""
    decay: Annotated[float, Bound(at_least=0, below=1)] = 0.5
    """How long."""
    limit: AtLeast1 | None = None
    """How far; null: without end."""
    widths: tuple[AtLeast1, ...] = (8,)
    """How wide."""


@dataclass(frozen=True)
class Whole:
    """A whole."""

    part: Part = Part()
    other: Part | None = None


@pytest.mark.parametrize(
    ("field", "refused", "taken", "said"),
    [
        ("count", 0, 1, "at least 1, got 0"),
        ("rate", 0.0, 1e-9, "a number above 0, got 0.0"),
        ("rate", math.nan, 2.0, "a number above 0, got nan"),
        ("share", 1.1, 1.0, r"a number in \[0, 1\], got 1.1"),
        ("share", -0.1, 0.0, r"a number in \[0, 1\], got -0.1"),
        ("decay", 1.0, 0.0, r"a number in \[0, 1\), got 1.0"),
        ("limit", 0, None, "at least 1, got 0"),
        ("widths", (8, 0), (8, 1), r"at least 1, got \(8, 0\)"),
    ],
)
def test_a_number_beyond_its_bound_is_refused_and_one_within_is_taken(field, refused, taken, said):
    with pytest.raises(ValueError, match=f"^{field}: expected {said}$"):
        replace(Part(), **{field: refused})
    assert getattr(replace(Part(), **{field: taken}), field) == taken


def test_a_refusal_names_the_whole_key_on_the_command_line_and_in_files(tmp_path):
    with pytest.raises(ConfigError, match=r"^part.rate: expected a number above 0, got -1.0$"):
        parse(Whole, ["--part.rate", "-1"])
    (tmp_path / "some.yaml").write_text("other: {count: 0}")
    with pytest.raises(ConfigError, match=r"^other.count: expected at least 1, got 0$"):
        parse(Whole, ["--config", str(tmp_path / "some.yaml")])
    config = Whole(part=Part(limit=4, widths=(1, 2)))
    (tmp_path / "some.yaml").write_text(dump(config))
    assert parse(Whole, ["--config", str(tmp_path / "some.yaml")]) == config


def test_help_tells_the_bounds_in_plain_words(capsys):
    with pytest.raises(SystemExit):
        parse(Whole, ["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "How many. (type: int, at least 1, default: 3)" in told
    assert "How fast. (type: float, a number above 0, default: 0.5)" in told
    assert "How long. (type: float, a number in [0, 1), default: 0.5)" in told
    assert "(type: Optional[int, at least 1], default: null)" in told
    assert "(type: tuple[int, at least 1, ...], default: (8,))" in told
    assert "Annotated" not in told
