"""Language actors that evolve by SimPO: a generation is one round of training for each of them.

Tunable are learning rate, beta, target margin, NLL weight and LoRA rank of the training config. In
float32 a member is a folder with all of its weights: an adapter is multiplied in after each round,
so that the next one may have another rank. Architectures grow by a layer or by units of the MLPs,
and the function stays; there is no activation to choose.

In 16 bits and less that would round most of an update away. There a member is the given model and
an adapter, which its children inherit and train further: the rank is not tunable, noise goes to the
adapter, and architectures stay. An environment step is one completion.

Each round and each evaluation is a run folder in RUN/members/, which goes on where it was killed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.config.settings import ActorConfig, GuidedActorConfig, recast
from lactchain.config.tunable import tunable_values, with_tunables
from lactchain.data.evaluations import check_success_known, read_episodes
from lactchain.environments.language import make_language_env
from lactchain.errors import CollapseError, ConfigError, NonFiniteError, NoPairsError
from lactchain.functional.random_streams import derive_seed
from lactchain.models.adapters import ADAPTER_RECORD, merges
from lactchain.models.loading import load_shape, resolve_dtype
from lactchain.models.weights import resolve_weights
from lactchain.runs.run import Run
from lactchain.search.evolution import Individual
from lactchain.search.mutations import first_config, mutate_tunables
from lactchain.search.settings import EvolutionConfig, SpaceConfig
from lactchain.stages.evaluate import EvaluateConfig
from lactchain.stages.search import LanguageConfig, Stages
from lactchain.stages.train_simpo import TrainSimPOConfig
from lactchain.storage.manifests import MANIFEST, write_manifest
from lactchain.storage.results import seen_from
from lactchain_extras.language_search.growth import (
    add_layer,
    add_mlp_units,
    disturb,
    disturb_adapter,
    read_model,
    write_model,
)

log = logging.getLogger(__name__)
RANK = "actor.lora.r"


@dataclass(frozen=True)
class Weights:
    """Where a member's weights are: the folder of a model, and of the adapter on it, if any."""

    model: str
    adapter: str | None = None


class LanguageSpecies:
    """Actors under selection; see `lactchain.search.evolution.Species`. A state is `Weights`.

    Args:
        config: how they train, and how they are judged.
        space: what is drawn and mutated.
        settings: sizes and rates.
        run: the search's run; members live in a folder of it.
        stages: `train` and `evaluate`, from a config to a summary.

    Raises:
        ConfigError: the rank of adapters that are inherited is to be searched.
    """

    def __init__(
        self,
        config: LanguageConfig,
        space: SpaceConfig,
        settings: EvolutionConfig,
        run: Run,
        stages: Stages,
    ) -> None:
        env = make_language_env(config.train.environment)
        check_success_known(env, [config.fitness], "fitness")
        self.config, self.settings, self.stages = config, settings, stages
        actor = config.train.actor
        dtype = resolve_dtype(actor, load_shape(resolve_weights(actor.model)))
        self.merges = merges(dtype, actor.bits is not None)
        self.space = space if self.merges else _without_rank(space, config.train)
        self.run_settings = config.train.run
        self.folder = run.path("members")
        self.num_env_steps = 0
        self.kept: list[str] = []
        self.failed: set[int] = set()

    def newcomer(
        self, place: int, rng: np.random.Generator
    ) -> tuple[TrainSimPOConfig, Weights, dict[str, Any]]:
        """An actor with the given weights; see `EvolutionConfig.start` for its config."""
        given = self.config.train
        config, change = first_config(given, self.space, self.settings, place, rng)
        return config, Weights(config.actor.model), change

    def keep(self, members: Sequence[Individual]) -> None:
        """Removes the folders in which there are no weights of these.

        Nor of those before them, from which the checkpoint before the last one would go on.
        """
        states = [member.state for member in members]
        folders = {path for state in states for path in (state.model, state.adapter) if path}
        names = sorted(map(self._name, folders))
        kept = {Path(self._place(name)).resolve() for name in [*names, *self.kept]}
        self.kept = names
        own = {f"{member.id}" for member in members}
        for folder in self.folder.iterdir() if self.folder.exists() else ():
            here = folder.resolve()
            used = any(here == path or here in path.parents for path in kept)
            if folder.name not in own and not used:
                shutil.rmtree(folder)

    def train(self, members: Sequence[Individual], generation: int) -> list[Weights]:
        """A round of SimPO for each member, one after the other.

        Who has nothing to prefer keeps its weights; so does who diverged, whose fitness is NaN.
        """
        return [self._train(member) for member in members]

    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """The figure by which members are judged; greedy completions are always the same."""
        fitness = []
        for member in members:
            if member.fitness is not None:
                fitness.append(member.fitness)
                continue
            if member.id in self.failed:
                fitness.append(np.nan)
                continue
            name = f"{member.id}/evaluation"
            fitness.append(self._judge(member, name, self.run_settings.seed))
            episodes = read_episodes(self.folder / name / "episodes.json")
            self.num_env_steps += sum(episode.num_chains for episode in episodes)
        return fitness

    def certify(self, member: Individual) -> float:
        """The same figure from another seed, not counted."""
        seed = derive_seed(self.run_settings.seed, "certifying") % 2**32
        return self._judge(member, f"{member.id}/certified", seed)

    def mutate(
        self, kind: str, parent: Individual, rng: np.random.Generator
    ) -> tuple[TrainSimPOConfig, Weights, Mapping[str, Any]] | None:
        """A mutant; None for kinds that language models, or those with adapters, have not."""
        settings, config = self.settings.mutation, parent.config
        if kind == "hyper":
            config, change = mutate_tunables(config, self.space, settings, rng)
            return config, parent.state, change
        if kind == "activation" or (kind == "architecture" and parent.state.adapter is not None):
            return None
        seed = int(rng.integers(2**31))
        folder = self.folder / f"{kind}-{seed}"
        if kind == "parameters":
            state = self._disturbed(parent.state, seed, folder)
            return config, state, {"noise": [0.0, settings.noise]}
        state, change = self._grown(parent.state, rng.random() < 0.5, seed, folder)
        return config, state, change

    def encode(self, config: TrainSimPOConfig, state: Weights) -> dict[str, Any]:
        """A member as plain values."""
        adapter = state.adapter and self._name(state.adapter)
        folder = self._name(state.model)
        return {"tunables": tunable_values(config), "folder": folder, "adapter": adapter}

    def decode(self, body: Mapping[str, Any]) -> tuple[TrainSimPOConfig, Weights]:
        """The config and the weights that `encode` was given."""
        adapter = body["adapter"]
        state = Weights(self._place(body["folder"]), adapter and self._place(adapter))
        return with_tunables(self.config.train, body["tunables"]), state

    def save(self, champion: Individual, folder: Path) -> None:
        """Nothing to write: weights lie in their members' folders."""

    def facts(self, champion: Individual) -> dict[str, Any]:
        """What a summary says of the champion beside its tunables."""
        return {"best/folder": champion.state.model, "best/adapter": champion.state.adapter}

    def close(self) -> None:
        """Nothing to close."""

    def state_dict(self) -> dict[str, Any]:
        """The count of completions, and where the weights are that were kept last."""
        return {"num_env_steps": self.num_env_steps, "kept": self.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        self.num_env_steps = state["num_env_steps"]
        self.kept = state["kept"]

    def _name(self, folder: str) -> str:
        """How a folder is written down: as members/..., where it is the search's own."""
        seen = seen_from(self.folder.parent, folder)
        return folder if seen is None else seen

    def _place(self, name: str) -> str:
        """Where a folder is that `_name` wrote down."""
        own = Path(name).parts[:1] == (self.folder.name,)
        return str(self.folder.parent / name) if own else name

    def _train(self, member: Individual) -> Weights:
        folder, state = self.folder / f"{member.id}/train", member.state
        run = replace(
            self.run_settings,
            run_dir=str(folder),
            seed=derive_seed(self.run_settings.seed, "member", member.id) % 2**32,
        )
        actor = replace(member.config.actor, model=state.model, adapter=state.adapter)
        if member.config.pairs is None:
            preferences = member.config.preferences
            self.num_env_steps += preferences.num_states * preferences.num_candidates
        try:
            self.stages["train"](replace(member.config, run=run, actor=actor))
        except NoPairsError as error:
            log.warning("member %d stays as it is: %s", member.id, error)
            return state
        except (NonFiniteError, CollapseError) as error:
            log.warning("member %d is given up: %s", member.id, error)
            self.failed.add(member.id)
            return state
        trained = folder / "actor"
        if not (trained / ADAPTER_RECORD).is_file():
            return Weights(str(trained))
        if not self.merges:
            return Weights(state.model, str(trained))
        merged = self.folder / f"{member.id}/actor"
        if not (merged / MANIFEST).exists():
            adapted = replace(actor, adapter=str(trained))
            self._write(read_model(adapted), actor, merged)
        return Weights(str(merged))

    def _grown(
        self, state: Weights, is_deeper: bool, seed: int, folder: Path
    ) -> tuple[Weights, dict[str, Any]]:
        """A layer more or wider MLPs, and what that changed."""
        actor = self._actor(state)
        model = read_model(actor)
        units = model.config.intermediate_size // 2
        grown = add_layer(model) if is_deeper else add_mlp_units(model, units, seed)
        name = "num_hidden_layers" if is_deeper else "intermediate_size"
        self._write(grown, actor, folder)
        return Weights(str(folder)), {name: [getattr(m.config, name) for m in (model, grown)]}

    def _disturbed(self, state: Weights, seed: int, folder: Path) -> Weights:
        """Noise on the adapter, or on all weights where there is none."""
        noise, actor = self.settings.mutation.noise, self._actor(state)
        if state.adapter is None:
            self._write(disturb(read_model(actor), noise, seed), actor, folder)
            return Weights(str(folder))
        disturb_adapter(actor, noise, seed, folder)
        return Weights(state.model, str(folder))

    def _judge(self, member: Individual, name: str, seed: int) -> float:
        run = replace(self.run_settings, run_dir=str(self.folder / name), seed=seed)
        actor = self._actor(member.state)
        greedy = recast(actor, GuidedActorConfig, decoding="free", temperature=0.0)
        config = EvaluateConfig(
            run=run,
            environment=self.config.train.environment,
            actor=greedy,
            evaluation=self.config.evaluation,
        )
        figures, fitness = self.stages["evaluate"](config), self.config.fitness
        return figures.get(f"practised/{fitness}", figures[fitness])

    def _actor(self, state: Weights) -> ActorConfig:
        actor = self.config.train.actor
        return replace(actor, model=state.model, adapter=state.adapter, lora=None)

    def _write(self, model: Any, actor: ActorConfig, folder: Path) -> None:
        """A model's folder, made anew unless it is whole."""
        shutil.rmtree(folder, ignore_errors=True)
        write_model(model, actor, folder)
        write_manifest(folder, {"parent": actor.model})


def _without_rank(space: SpaceConfig, config: TrainSimPOConfig) -> SpaceConfig:
    """The space of members whose adapters are inherited, each with the rank that it has."""
    if RANK in space.tunables:
        raise ConfigError(
            f"space.tunables: {RANK} can be searched in float32 only, where adapters are merged; "
            "in 16 bits and less children inherit them; leave it out, or give actor.dtype float32"
        )
    others = [name for name in tunable_values(config) if name != RANK]
    return replace(space, tunables=space.tunables or others)
