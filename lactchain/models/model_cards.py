"""Model cards: a README.md beside weights, for whoever finds the folder later.

A card is made from `model_card.md` beside this file, without a network. Its header is that of the
Hugging Face hub, from which also later cards learn of base, licence and figures. People may edit a
card: no manifest lists it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from lactchain.files import atomic_write
from lactchain.manifests import CARD, MANIFEST, read_manifest
from lactchain.models.adapters import ADAPTER_RECORD
from lactchain.models.places import resolve_weights
from lactchain.settings import EnvironmentConfig

TEMPLATE = Path(__file__).with_name("model_card.md")
TAG = "lactchain"
"""Marks the cards that are made here."""
LICENCE = ("license", "license_name", "license_link")
IN_CACHE = re.compile(r"/models--(.+?)--([^/]+)/snapshots/")
OUR_LICENCE = {"license": "mit"}
"""Of tiny models: random numbers that LactChain has drawn."""


@dataclass(frozen=True)
class Base:
    """What weights were made from.

    Attributes:
        name: its folder, or its name on the hub.
        hub_id: the model on the hub that it goes back to; None for a tiny model, or if unknown.
        licence: entries of `LICENCE`; empty if unknown.
        is_tiny: whether it was built here, from random numbers.
    """

    name: str
    hub_id: str | None = None
    licence: Mapping[str, str] = field(default_factory=dict)
    is_tiny: bool = False

    @classmethod
    def of(cls, model: str | Path) -> "Base":
        """The base in a folder, as its manifest and its own card tell."""
        folder = resolve_weights(model)
        manifest = folder / MANIFEST
        recorded = read_manifest(manifest) if manifest.is_file() else {}
        made_from, header = recorded.get("made_from", {}), header_of(folder)
        licence = {name: header[name] for name in LICENCE if name in header}
        if not licence and recorded.get("licence"):
            licence = {"license": recorded["licence"]}
        if made_from and made_from.keys().isdisjoint(("hub", "gguf")):
            return cls(str(model), None, licence or OUR_LICENCE, is_tiny=True)
        cached = IN_CACHE.search(folder.as_posix())
        downloaded = f"{cached[1]}/{cached[2]}" if cached else made_from.get("hub")
        inherited = header.get("base_model") if TAG in header.get("tags", ()) else None
        return cls(str(model), downloaded or inherited, licence)

    @property
    def described(self) -> str:
        """Its name, and that it is a tiny model if it is one."""
        return code(self.name) + (
            ", a tiny model that LactChain built from random numbers" if self.is_tiny else ""
        )

    @property
    def terms(self) -> str:
        """What its licence means for weights that are made from it, in a sentence."""
        name = self.licence.get("license_name") or self.licence.get("license")
        if name is None:
            return (
                f"The folder of the base, {code(self.name)}, does not say under which licence it "
                "is. Look at where it comes from before you pass these weights on."
            )
        page = f"https://huggingface.co/{self.hub_id}" if self.hub_id else ""
        link = self.licence.get("license_link") or page
        behind = f" (see {link})" if link else ""
        return f"The base is under {code(name)}{behind}. Its terms hold for these weights too."


@dataclass(frozen=True)
class Card:
    """What a card says.

    Attributes:
        folder: of the weights.
        what: what they are, in a sentence or two.
        base: what they were made from.
        facts: rows of a table; names, and Markdown.
        data: what they learnt from.
        figures: how good they are; see `figure`.
        about_figures: how these were measured, or that nothing was.
        load: Python that loads and asks them.
        limits: where they are of no use.
    """

    folder: Path
    what: str
    base: Base
    facts: Mapping[str, str]
    data: str
    figures: tuple[EvalResult, ...]
    about_figures: str
    load: str
    limits: tuple[str, ...]

    @property
    def header(self) -> ModelCardData:
        """The metadata that the hub reads."""
        kind = "peft" if (self.folder / ADAPTER_RECORD).is_file() else "transformers"
        return ModelCardData(
            base_model=self.base.hub_id,
            library_name=kind,
            model_name=self.folder.as_posix() if self.figures else None,
            eval_results=list(self.figures) or None,
            tags=[TAG, "reinforcement-learning", "gymnasium"],
            **self.base.licence,
        )

    def write(self) -> None:
        """Writes the card into its folder; `DiskError` where that cannot be."""
        card = ModelCard.from_template(
            self.header,
            template_str=TEMPLATE.read_text("utf-8"),
            card=self,
            version=metadata.version("lactchain"),
        )
        atomic_write(self.folder / CARD, f"{card}\n")


def figure(
    environment: EnvironmentConfig,
    name: str,
    value: float,
    of: str,
    interval: tuple[float, float] | None = None,
) -> EvalResult:
    """A figure of a card: its name, its value, what it is over, and where it lies with 95 %."""
    return EvalResult(
        task_type="reinforcement-learning",
        dataset_type=environment.id,
        dataset_name=environment.id,
        metric_type=name,
        metric_name=name.replace("_", " "),
        metric_value=float(value),
        metric_args={"of": of} | ({"interval_95": list(interval)} if interval else {}),
    )


def header_of(folder: Path) -> dict:
    """The metadata of the card in a folder; empty where there is none that can be read."""
    try:
        card = ModelCard((folder / CARD).read_text("utf-8"), ignore_metadata_errors=True)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return card.data.to_dict()


def figures_of(folder: Path) -> tuple[EvalResult, ...]:
    """The figures of the card in a folder, if that was made here."""
    if TAG not in header_of(folder).get("tags", ()):
        return ()
    card = ModelCard((folder / CARD).read_text("utf-8"), ignore_metadata_errors=True)
    return tuple(card.data.eval_results or ())


def section_of(folder: Path, heading: str) -> str:
    """The text under a heading of the card in a folder, if that was made here; else nothing."""
    if TAG not in header_of(folder).get("tags", ()):
        return ""
    text = (folder / CARD).read_text("utf-8")
    found = re.search(rf"^## {heading}\n+(.*?)\n+(?=## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def code(text: object) -> str:
    """A text as code in a line or a table's cell of Markdown."""
    plain = " ".join(str(text).split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`"
