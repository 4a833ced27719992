"""What a round adds to a pretrained model: arms from one warm start, on the same states and pairs.

    python benchmarks/pretrained.py --seed 0 --folder runs/arms_0

The warm start of `configs/run_pipeline/smollm2.yaml` is stopped after so many chains that there is
something left to learn. From it go: a round of the recipe; the same pairs with the likelihood of
the chosen completions alone, and with the preference alone; and further cloning of the same
behaviour for the CPU seconds that the round took. Each plays the same start states greedily and by
sampling. Any setting of the preset may follow, as in `--simpo.preferences.num_states 512`.

Every stage is a run folder: the same command goes on where it was stopped (CPU seconds are those of
the last start).
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.config.parsing import parse
from lactchain.config.settings import ActorConfig, GuidedActorConfig, PlayerConfig, recast
from lactchain.data.evaluations import EpisodeResult, practised, read_episodes
from lactchain.data.intervals import paired_interval
from lactchain.runs.console import table
from lactchain.stages import evaluate, train_bc, train_critic, train_simpo
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.rounds import cloning, criticism, evaluation
from lactchain.storage.files import read_json, write_json

PRESET = Path(__file__).parent.parent / "configs/run_pipeline/smollm2.yaml"
WEIGHTS = {
    "recipe": {},
    "likelihood alone": {"preference_weight": 0.0},
    "preference alone": {"nll_weight": 0.0},
}
"""What differs between the arms that learn from the pairs."""
CLONING = "cloning"
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}


class Study:
    """The stages of one seed, each in a folder of its own; finished ones are read again."""

    def __init__(self, config: RunPipelineConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.costs_file = folder / "costs.json"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def costs(self) -> dict[str, float]:
        """CPU seconds of each stage."""
        return read_json(self.costs_file) if self.costs_file.is_file() else {}

    def stage(self, name: str, main: Callable[[Any], dict[str, Any]], config: Any, seed: int = 0):
        """Runs a stage, and notes what it cost."""
        run = replace(
            self.config.run, run_dir=str(self.folder / name), seed=self.config.run.seed + seed
        )
        begun, finished = time.process_time(), (self.folder / name / "summary.json").is_file()
        summary = main(replace(config, run=run))
        if not finished:
            write_json(self.costs_file, self.costs | {name: time.process_time() - begun})
        return summary

    def warm_start(self) -> ActorConfig:
        """Clones, and returns the actor."""
        self.stage("warm start", train_bc.main, cloning(self.config, self.config.actor))
        return self.at("warm start")

    def at(self, name: str) -> ActorConfig:
        """The actor that a stage has trained."""
        return replace(self.config.actor, adapter=str(self.folder / name / "actor"))

    def train_critic(self, actor: ActorConfig) -> None:
        """The critic of all arms."""
        player = criticism(self.config, recast(actor, PlayerConfig))
        self.stage("critic", train_critic.main, player, seed=1)

    def improvement(self, actor: ActorConfig, name: str) -> train_simpo.TrainSimPOConfig:
        """SimPO with the weights of an arm, on pairs that are made once for all."""
        loss = replace(self.config.simpo.loss, **WEIGHTS[name])
        pairs = None if name == "recipe" else str(self.folder / "recipe/pairs")
        return train_simpo.TrainSimPOConfig(
            environment=self.config.environment,
            actor=actor,
            critic=str(self.folder / "critic/critic") if pairs is None else None,
            pairs=pairs,
            preferences=self.config.simpo.preferences,
            loss=loss,
            training=self.config.simpo.training,
        )

    def clone_on(self, actor: ActorConfig) -> None:
        """Clones further chains for as many CPU seconds as the round of the recipe took."""
        config = cloning(self.config, actor)
        spent = self.costs["critic"] + self.costs["recipe"]
        num_chains = round(config.behavior.num_chains * spent / self.costs["warm start"])
        behavior = replace(config.behavior, num_chains=max(num_chains, 1))
        self.stage(CLONING, train_bc.main, replace(config, behavior=behavior), seed=1)

    def play(self, name: str, actor: ActorConfig) -> dict[str, Any]:
        """A row of the table: how an actor plays the start states that are reported of."""
        row: dict[str, Any] = {"arm": name, "CPU seconds": f"{self.costs.get(name, 0):.0f}"}
        for how, temperature in TEMPERATURES.items():
            player = replace(recast(actor, GuidedActorConfig), temperature=temperature)
            figures = self.stage(f"{name}, {how}", evaluate.main, evaluation(self.config, player))
            row[f"{how} success"] = f"{practised(figures, 'success_rate'):.3f}"
            row[f"{how} in two"] = f"{practised(figures, 'success_within_2_chains'):.3f}"
        row["no chain"] = f"{figures['sampled_invalid_rate']:.3f}"
        low, high = paired_interval(self._in_two("warm start"), self._in_two(name))
        row["in two, less warm start"] = f"{low:+.3f} to {high:+.3f}"
        return row

    def _in_two(self, name: str) -> np.ndarray:
        episodes: list[EpisodeResult] = read_episodes(self.folder / f"{name}, greedy/episodes.json")
        return np.array([e.success and e.num_chains <= 2 for e in episodes], dtype=float)


def study_of(seed: int, chains: int, folder: Path, settings: Sequence[str] = ()) -> Study:
    """The study of a seed, whose warm start ends after so many chains."""
    words = ["--config", str(PRESET), "--run.seed", str(seed)]
    words += ["--warm_start.target_skill", "null"]
    words += ["--warm_start.behavior.num_chains", str(chains), *settings]
    return Study(parse(RunPipelineConfig, words), folder)


def main() -> None:
    """Prints a row an arm as soon as it is known, and the table at the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained_arms"))
    parser.add_argument("--chains", type=int, default=640, help="of the warm start")
    parser.add_argument("--arms", nargs="*", default=[*WEIGHTS, CLONING])
    arguments, settings = parser.parse_known_args()
    study = study_of(arguments.seed, arguments.chains, arguments.folder, settings)
    actor = study.warm_start()
    rows = [study.play("warm start", actor)]
    for name in arguments.arms:
        if name == CLONING:
            study.clone_on(actor)
        else:
            study.train_critic(actor)
            study.stage(name, train_simpo.main, study.improvement(actor, name), seed=1)
        rows.append(study.play(name, study.at(name)))
        print(json.dumps(rows[-1]), flush=True)
    table("From one warm start", rows)


if __name__ == "__main__":
    main()
