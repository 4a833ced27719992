"""Model cards: a README.md beside weights, for whoever finds the folder later.

It is `model_card.md.jinja`, filled from the run's config.yaml and its summary, without a network.
From its header, which is that of the Hugging Face hub, later cards learn of base, licence and
figures. People may edit a card: no manifest lists it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from lactchain.data.evaluations import EpisodeResult, by_part, read_episodes
from lactchain.data.intervals import share_interval
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.models.actor import POLICY_FILE
from lactchain.models.weights import ADAPTER_FILES, ADAPTER_RECORD, resolve_weights
from lactchain.runs import distributed
from lactchain.runs.run import Run
from lactchain.storage.files import atomic_write, read_json
from lactchain.storage.manifests import CARD, MANIFEST, read_manifest
from lactchain_extras.weights.critic_export import config_of

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
TAG = "lactchain"
"""Marks the cards that are made here."""
LICENCE = ("license", "license_name", "license_link")
IN_CACHE = re.compile(r"/models--(.+?)--([^/]+)/snapshots/")
LONGEST_TEXT = 300
RETURNS, VALUES = "returns of held-out episodes", "exact values of states"
MEASURED = {
    "actor": {"success_rate_before": "start states", "actions_over_shortest": "solved episodes"},
    "critic": dict.fromkeys(("eval_r2", "eval_r2_ceiling", "eval_rmse"), RETURNS)
    | dict.fromkeys(("critic_r2", "critic_rmse"), VALUES),
}
"""Of each kind the figures in a summary that a card shows, and what they are over."""


@dataclass(frozen=True)
class Base:
    """What weights were made from."""

    name: str  # its folder, or its name on the hub
    hub_id: str | None = None  # that it goes back to; None for a tiny model, or if unknown
    licence: Mapping[str, str] = field(default_factory=dict)  # entries of LICENCE, if known
    is_tiny: bool = False  # built here, from random numbers
    quantisation: str = ""  # of the file that it was converted from

    @classmethod
    def of(cls, model: str | Path) -> "Base":
        """The base in a folder, as its manifest and its own card tell."""
        folder = resolve_weights(model)
        manifest, header = folder / MANIFEST, header_of(folder)
        recorded = read_manifest(manifest) if manifest.is_file() else {}
        licence = {name: header[name] for name in LICENCE if name in header}
        if not licence and recorded.get("licence"):
            licence = {"license": recorded["licence"]}
        made_from, kept = recorded.get("made_from", {}), recorded.get("quantisation", "")
        if made_from and made_from.keys().isdisjoint(("hub", "gguf")):
            return cls(str(model), None, licence or {"license": "mit"}, is_tiny=True)
        cached = IN_CACHE.search(folder.as_posix())
        downloaded = f"{cached[1]}/{cached[2]}" if cached else made_from.get("hub")
        inherited = header.get("base_model") if TAG in header.get("tags", ()) else None
        return cls(str(model), downloaded or inherited, licence, quantisation=kept)


def write(config: Any, run: Run, kind: str, summary: Mapping[str, Any]) -> None:
    """Writes the card of the weights in RUN/actor, critic, values, or model, which is an export."""
    if not distributed.is_main():
        return
    folder, settings = run.path(kind), run.environment["config"]  # without secrets
    model, adapter = config.critic if kind == "critic" else config.actor, folder / ADAPTER_FILES[0]
    if form := summary.get("form"):  # of a critic, whose folder the configuration names
        model = config_of(config.critic)
    base = Base.of(run.path("base/actor") if getattr(config, "tiny", None) else model.model)
    facts = {"kind": kind, "base": base, "read_as": model.dtype, "folder": folder.as_posix()}
    facts |= {"config": config, "settings": settings, "summary": summary, "run": run, "code": code}
    facts |= {"rank": read_json(adapter)["r"] if adapter.is_file() else None}
    facts |= {"commit": run.environment["git_commit"]}
    if kind == "model":
        facts |= _export(Path(config.critic if form else model.adapter or model.model), folder)
        facts |= {"form": form, "exported": model}
    else:
        facts["seed"] = settings["run"]["seed"]
        facts["env"] = make_language_env(config.environment)
        facts["observation"] = facts["env"].reset(seed=0)[0][:LONGEST_TEXT]
        facts["figures"] = _figures(config, run, kind, summary)
        learnt = {k: v for k, v in settings.items() if k not in ("run", "tiny")}
        facts["training"] = yaml.safe_dump(learnt, sort_keys=False, allow_unicode=True).strip()
    library = "peft" if (folder / ADAPTER_RECORD).is_file() else "transformers"
    header = ModelCardData(
        base_model=base.hub_id,
        library_name="sentence-transformers" if form == "sentence_transformer" else library,
        model_name=folder.as_posix() if facts["figures"] else None,
        eval_results=facts["figures"] or None,
        tags=[TAG, "reinforcement-learning", "gymnasium"],
        **base.licence,
    )
    facts["version"], text = metadata.version("lactchain"), TEMPLATE.read_text("utf-8")
    card = ModelCard.from_template(header, template_str=text, **facts)
    atomic_write(folder / CARD, f"{card}\n")


def _export(source: Path, folder: Path) -> dict[str, Any]:
    """What the card of an export takes over from that of its source, if LactChain wrote that."""
    card = card_in(source) if TAG in header_of(source).get("tags", ()) else None
    section = r"^## Training\n+(.*?)\n+(?=^## |\Z)"
    found = re.search(section, card.text, re.MULTILINE | re.DOTALL) if card else None
    facts = {"training": found[1] if found else None, "source": source}
    facts["figures"] = card.data.eval_results if card else None
    seed = re.search(r"^\| seed \| (\d+) \|", card.text, re.MULTILINE) if card else None
    facts["seed"] = seed and seed[1]
    return facts | {"is_policy": (folder / POLICY_FILE).is_file()}  # as which it can be loaded


def _figures(config: Any, run: Run, kind: str, summary: Mapping[str, Any]) -> list[EvalResult]:
    """How good it is, as far as the run has measured that."""
    found: dict[str, tuple] = {}
    if kind == "actor" and run.path("episodes.json").is_file():
        world, evaluation = config.environment, config.evaluation
        exactly = evaluation.num_starts is None and Rollouts(world, num_envs=1).deterministic
        results = read_episodes(run.path("episodes.json"))
        starts = len({str(result.state) for result in results})
        drawn = starts == evaluation.num_starts  # their episodes are no draws of their own
        found = success_figures(results, bool(exactly), len(results) // starts if drawn else 1)
        if n := evaluation.num_samples:
            rate, of = summary["invalid_rate_after"], f"{n:,} sampled completions"
            found["invalid_rate_after"] = rate, of, share_interval(round(rate * n), n)
    for name, of in MEASURED.get(kind, {}).items():
        found[name] = summary.get(name), of, summary.get(f"{name}_interval")
    return [
        EvalResult(
            task_type="reinforcement-learning",
            dataset_type=config.environment.id,
            dataset_name=config.environment.id,
            metric_type=name,
            metric_name=name.replace("_", " "),
            metric_value=float(value),
            metric_args={"of": of} | ({"interval_95": list(interval)} if interval else {}),
        )
        for name, (value, of, interval) in found.items()
        if value is not None and math.isfinite(value)  # constant returns have no R2
    ]


def success_figures(
    results: list[EpisodeResult], exactly: bool, per_draw: int = 1
) -> dict[str, tuple]:
    """Shares of N > 0 greedy episodes, of each part too where states are held back.

    `per_draw` of them are of one start state that was drawn.

    By name: the value, what it is over, and the interval; none where `exactly` nothing was drawn.
    """
    found: dict[str, tuple] = {}
    if any(result.success is None for result in results):
        return found
    for part, episodes in {"": results, **by_part(results)}.items():
        states, behind = len({str(r.state) for r in episodes}), f"_{part}" if part else ""
        of = f"all {states:,} start states, exactly" if exactly else f"{len(episodes):,} episodes"
        for name, most in (("success_rate_after", math.inf), ("success_within_2_chains", 2)):
            won = sum(r.success and r.num_chains <= most for r in episodes)
            draws = len(episodes) // per_draw
            interval = None if exactly else share_interval(won / per_draw, draws)
            found[name + behind] = won / len(episodes), of, interval
    return found


def code(*texts: object) -> str:
    """Texts as code in a line or a table's cell of Markdown."""
    plain = (" ".join(str(t).split()).replace("`", "'").replace("|", "\\|") for t in texts)
    return " ".join(f"`{text}`" for text in plain if text)


def header_of(folder: Path) -> dict[str, Any]:
    """The metadata of the card in a folder; empty where there is none that can be read."""
    card = card_in(folder)
    return card.data.to_dict() if card else {}


def card_in(folder: Path) -> ModelCard | None:
    """The card in a folder; None where there is none that can be read."""
    try:
        return ModelCard((folder / CARD).read_text("utf-8"), ignore_metadata_errors=True)
    except (OSError, ValueError, yaml.YAMLError):
        return None
