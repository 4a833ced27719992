r"""What rounds teach an actor that answers in whole sentences: real vocabulary, bfloat16, LoRA.

The models are the rehearsal's: Mistral's shape at small width, its tokenizer of 32,768 tokens and
its chat template, taught some of what a pretrained model would know (`taught_models.py`). The
configuration is the shipped one for Mistral-7B; what `SETTINGS` changes suits a model that begins
with less. Beside what comes out stand random chains, and the actor before its first round; 1.000 of
the start states can be solved.

    python benchmarks/learning.py
    python benchmarks/learning.py --seeds 0 1 2

A run that was killed goes on where it was, and one that is there is not done again.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearsal import STAGES, build_models, rehearse

from lactchain.config.settings import EnvironmentConfig
from lactchain.data.episodes import all_episodes
from lactchain.data.figures import summarize
from lactchain.data.rollouts import Rollouts, episode_results
from lactchain.environments.scripted import RandomChains
from lactchain.runs.console import table
from lactchain.runs.run import read_metrics

SETTINGS: dict[str, Any] = {
    "critic.config.gamma": 0.8,  # returns of a poor policy are mostly noise; less so when near
    "critic.collect.num_envs": 120,
    "critic.training.num_epochs": 5,
    "critic.training.gradient_accumulation_steps": 1,
    "simpo.preferences.min_margin": 0.02,
    "simpo.simpo.nll_weight": 5.0,
    "simpo.training.num_epochs": 3,
    "simpo.training.gradient_accumulation_steps": 2,
    "evaluation.num_samples": 512,
    "num_rounds": 9,
    "learning_rate_decay": 0.85,
    "nll_weight_growth": 1.2,
    "target": {"success_rate": 0.97},
}


def learn(folder: Path, seed: int) -> list[dict[str, Any]]:
    """A row for each round of a run of the pipeline, made or continued if need be."""
    place = f"runs/learning_{seed}"
    (preset,) = (stage for stage in STAGES if stage.script == "run_pipeline")
    counts = SETTINGS | {"run.run_dir": place, "run.seed": seed}
    rehearse(replace(preset, counts=counts), folder, processes=2, kill=False)
    rounds = sorted((folder / place).glob("round_*"), key=lambda path: int(path.name[6:]))
    return [{"seed": seed} | _round(path) for path in rounds]


def _round(path: Path) -> dict[str, Any]:
    """How an actor plays greedily after a round, and how its critic and its pairs were."""
    played = _summary(path / "evaluation")
    learnt = {"critic R²": "", "pairs preferred": ""}
    if (path / "critic").exists():
        records = [r for r in read_metrics(path / "simpo") if "rewards/accuracies" in r]
        learnt = {
            "critic R²": _summary(path / "critic")["eval_r2"],
            "pairs preferred": records[-1]["rewards/accuracies"],
        }
    return {"round": path.name[6:], **_figures(played), **learnt}


def _figures(played: dict[str, float]) -> dict[str, float]:
    names = ("success_rate", "success_within_2_chains", "actions_over_shortest", "invalid_rate")
    return {name: played[name] for name in names}


def _summary(path: Path) -> dict[str, Any]:
    return json.loads((path / "summary.json").read_text("utf-8"))


def random_chains() -> dict[str, Any]:
    """The row of a policy that draws chains at random, lengths and actions uniformly."""
    rollouts = Rollouts(EnvironmentConfig(max_chains=16))
    episodes = all_episodes(rollouts.env, seed=0)
    played = rollouts.play(RandomChains(rollouts.env.grammar), episodes)
    figures = _figures(summarize(episode_results(rollouts.env, played), played))
    return {"seed": 0, "round": "random chains", **figures, "critic R²": "", "pairs preferred": ""}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/rehearsal"), help="of all files")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    build_models(folder / "weights")
    rows = [random_chains()]
    for seed in arguments.seeds:
        rows += learn(folder, seed)
        table(f"Learning, seed {seed}", rows)


if __name__ == "__main__":
    main()
