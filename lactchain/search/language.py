"""Language actors that evolve by SimPO: a generation is one round of training for each of them.

A member is a folder with all of its weights: an adapter is multiplied in after each round, so that
the next one may have another rank. Genes are those of the training config: learning rate, beta,
target margin, LoRA rank. Architectures grow by a layer or by units of the MLPs, and the function
stays; there is no activation to choose. An environment step is one answer.

Each round and each evaluation is a run folder in RUN/members/, which goes on where it was killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.checkpoints import MANIFEST, write_manifest
from lactchain.data.evaluations import read_episodes
from lactchain.genes import gene_values, with_genes
from lactchain.jobs import EvaluateConfig, TrainSimPOConfig
from lactchain.models.adapters import SEAL_FILE
from lactchain.models.growth import add_layer, add_mlp_units, disturb, read_model, write_model
from lactchain.run import Run
from lactchain.search.evolution import Individual
from lactchain.search.mutations import draw_config, mutate_gene
from lactchain.search.settings import EvolutionConfig, LanguageConfig, SpaceConfig
from lactchain.settings import ActorConfig

Stages = Mapping[str, Callable[[Any], dict]]


class LanguageSpecies:
    """Actors under selection; see `lactchain.search.evolution.Species`. A state is a folder.

    Args:
        config: how they train, and how they are judged.
        space: what is drawn and mutated.
        settings: sizes and rates.
        run: the search's run; members live in a folder of it.
        stages: `train` and `evaluate`, from a config to a summary.
    """

    def __init__(
        self,
        config: LanguageConfig,
        space: SpaceConfig,
        settings: EvolutionConfig,
        run: Run,
        stages: Stages,
    ) -> None:
        self.config, self.space, self.settings, self.stages = config, space, settings, stages
        self.run_settings = config.train.run
        self.folder = run.path("members")
        self.num_env_steps = 0

    def newcomer(self, place: int, rng: np.random.Generator) -> tuple[Any, str, dict[str, Any]]:
        """An actor with the given weights; see `EvolutionConfig.start` for its config."""
        config, change = self.config.train, {}
        if self.settings.start == "drawn":
            config = draw_config(config, self.space, rng)
        elif place > 0:
            config, change = mutate_gene(config, self.space, self.settings.mutation, rng)
        return config, config.actor.model, change

    def train(self, members: Sequence[Individual], generation: int) -> list[str]:
        """A round of SimPO for each member, one after the other."""
        self._prune(members)
        return [self._train(member) for member in members]

    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """The figure by which members are judged; greedy answers come out the same every time."""
        fitness = []
        for member in members:
            if member.fitness is not None:
                fitness.append(member.fitness)
                continue
            name = f"{member.id}/evaluation"
            fitness.append(self._judge(member, name, self.run_settings.seed))
            episodes = read_episodes(self.folder / name / "episodes.json")
            self.num_env_steps += sum(episode.num_chains for episode in episodes)
        return fitness

    def certify(self, member: Individual) -> float:
        """The same figure from another seed, not counted."""
        seed = (self.run_settings.seed + 1_000_000) % 2**32
        return self._judge(member, f"{member.id}/certified", seed)

    def mutate(
        self, kind: str, parent: Individual, rng: np.random.Generator
    ) -> tuple[Any, str, Mapping[str, Any]] | None:
        """A mutant; None for kinds that language models have not."""
        settings, config = self.settings.mutation, parent.config
        if kind == "hyper":
            config, change = mutate_gene(config, self.space, settings, rng)
            return config, parent.state, change
        if kind == "activation":
            return None
        seed = int(rng.integers(2**31))
        folder, actor = self.folder / f"{kind}-{seed}", self._actor(parent.state)
        model = read_model(actor)
        if kind == "parameters":
            mutant, change = disturb(model, settings.noise, seed), {"noise": [0.0, settings.noise]}
        elif rng.random() < 0.5:
            mutant, name = add_layer(model), "num_hidden_layers"
            change = {name: [getattr(m.config, name) for m in (model, mutant)]}
        else:
            size = model.config.intermediate_size
            mutant, change = (
                add_mlp_units(model, size // 2, seed),
                {"intermediate_size": [size, size + size // 2]},
            )
        self._write(mutant, actor, folder)
        return config, str(folder), change

    def encode(self, config: TrainSimPOConfig, state: str) -> dict[str, Any]:
        """A member as plain values."""
        return {"genes": gene_values(config), "folder": state}

    def decode(self, body: Mapping[str, Any]) -> tuple[TrainSimPOConfig, str]:
        """The config and the folder that `encode` was given."""
        return with_genes(self.config.train, body["genes"]), body["folder"]

    def facts(self, champion: Individual) -> dict[str, Any]:
        """What a summary says of the champion beside its genes."""
        return {"best/folder": champion.state}

    def close(self) -> None:
        """Nothing is open."""

    def state_dict(self) -> dict[str, Any]:
        """The count of answers."""
        return {"num_env_steps": self.num_env_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        self.num_env_steps = state["num_env_steps"]

    def _train(self, member: Individual) -> str:
        folder = self.folder / f"{member.id}/train"
        run = replace(
            self.run_settings,
            run_dir=str(folder),
            seed=(1000 * self.run_settings.seed + member.id) % 2**32,
            resume="auto",
        )
        actor = replace(member.config.actor, model=member.state, adapter=None)
        self.stages["train"](replace(member.config, run=run, actor=actor))
        if member.config.pairs is None:
            preferences = member.config.preferences
            self.num_env_steps += preferences.num_states * preferences.num_candidates
        trained = folder / "actor"
        if not (trained / SEAL_FILE).is_file():
            return str(trained)
        merged = self.folder / f"{member.id}/actor"
        if not (merged / MANIFEST).exists():
            adapted = replace(actor, adapter=str(trained))
            self._write(read_model(adapted), actor, merged)
        return str(merged)

    def _judge(self, member: Individual, name: str, seed: int) -> float:
        run = replace(self.run_settings, run_dir=str(self.folder / name), seed=seed, resume="auto")
        greedy = replace(self._actor(member.state), decoding="free", temperature=0.0)
        config = EvaluateConfig(
            run=run,
            environment=self.config.train.environment,
            actor=greedy,
            evaluation=self.config.evaluation,
        )
        return self.stages["evaluate"](config)[self.config.fitness]

    def _actor(self, folder: str) -> ActorConfig:
        return replace(self.config.train.actor, model=folder, adapter=None, lora=None)

    def _write(self, model: Any, actor: ActorConfig, folder: Path) -> None:
        """A model's folder, made anew unless it is whole."""
        shutil.rmtree(folder, ignore_errors=True)
        write_model(model, actor, folder)
        write_manifest(folder, {"parent": actor.model})

    def _prune(self, members: Sequence[Individual]) -> None:
        """Removes the weights that nobody comes from: one of the members is the champion's."""
        kept = {Path(member.state).resolve() for member in members}
        own = {f"{member.id}" for member in members}
        for folder in self.folder.iterdir() if self.folder.exists() else ():
            here = folder.resolve()
            used = any(here == path or here in path.parents for path in kept)
            if folder.name not in own and not used:
                shutil.rmtree(folder)
