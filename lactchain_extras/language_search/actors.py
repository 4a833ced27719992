"""Language actors that evolve by SimPO: a generation is one round of training for each of them.

Tunable are learning rate, beta, target margin and NLL weight of the training config. A member is a
folder with all of its weights, which noise and growth change: by a layer or by units of the MLPs,
and the function stays; there is no activation to choose. With `actor.lora` it is the given model
and an adapter, which its children inherit and train further; only tunables change then.

An environment step is one completion. Each round and each evaluation is a run folder in
RUN/members/, which goes on where it was killed.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.config.settings import ActorConfig, GuidedActorConfig, recast
from lactchain.data.evaluations import check_success_known, read_episodes
from lactchain.environments.language import make_language_env
from lactchain.errors import CollapseError, NonFiniteError, NoPairsError
from lactchain.functional.random_streams import derive_seed
from lactchain.models.loading import load_actor
from lactchain.models.weights import ADAPTER_RECORD
from lactchain.runs.run import Run
from lactchain.search.evolution import Individual, Species
from lactchain.search.mutations import Child
from lactchain.stages import evaluate, train_simpo
from lactchain.stages.evaluate import EvaluateConfig
from lactchain_extras.language_search.growth import add_layer, add_mlp_units, disturb, write_model

log = logging.getLogger(__name__)
MEMBERS = "members"

Weights = dict[str, str | None]
"""Folders of a member's `model`, and of the `adapter` on it; those of the search as members/…"""


class LanguageSpecies(Species):
    """Actors under selection. A state is `Weights`.

    Args:
        config: the `SearchConfig`; its `language` says how they train, and how they are judged.
        run: the search's run; members live in a folder of it.
    """

    stored = "num_env_steps", "kept"

    def __init__(self, config: Any, run: Run) -> None:
        super().__init__(config)
        self.judging, self.run_settings = config.language, self.given.run
        env = make_language_env(self.given.environment)
        check_success_known(env, [self.judging.fitness], "fitness")
        self.folder = run.path(MEMBERS)
        self.kept: list[str] = []
        self.failed: set[int] = set()

    def untrained(self, config: Any, place: int) -> Weights:
        """The given weights."""
        return {"model": config.actor.model, "adapter": None}

    def keep(self, members: Sequence[Individual]) -> None:
        """Removes the folders in which there are no weights of these.

        Nor of those before them, from which the checkpoint before the last one would go on.
        """
        names = sorted({name for member in members for name in member.state.values() if name})
        used = {Path(name).parts[1] for name in [*names, *self.kept] if _is_own(name)}
        used |= {f"{member.id}" for member in members}
        self.kept = names
        for folder in self.folder.iterdir() if self.folder.exists() else ():
            if folder.name not in used:
                shutil.rmtree(folder)

    def train(self, members: Sequence[Individual], generation: int) -> list[Weights]:
        """A round of SimPO for each member, one after the other.

        Who has nothing to prefer keeps its weights; so does who diverged, whose fitness is NaN.
        """
        return [self._train(member) for member in members]

    def evaluate(self, members: Sequence[Individual], generation: int) -> list[float]:
        """The figure by which members are judged; greedy completions are always the same."""
        return [self._evaluate(m) if m.fitness is None else m.fitness for m in members]

    def certify(self, member: Individual) -> float:
        """The same figure from another seed, not counted."""
        seed = derive_seed(self.run_settings.seed, "certifying") % 2**32
        return self._judge(member, f"{member.id}/certified", seed)

    def mutate(self, kind: str, parent: Individual, rng: np.random.Generator) -> Child | None:
        """A mutant; None for kinds that language models, or those with adapters, have not."""
        settings, state = self.settings.mutation, parent.state
        if kind == "hyper":
            return super().mutate(kind, parent, rng)
        if kind == "activation" or state["adapter"] is not None:
            return None
        seed = int(rng.integers(2**31))
        actor = self._actor(state)
        model = load_actor(actor)[0]
        if kind == "parameters":
            mutant, change = disturb(model, settings.noise, seed), {"noise": [0.0, settings.noise]}
        else:
            is_deeper, units = rng.random() < 0.5, model.config.intermediate_size // 2
            mutant = add_layer(model) if is_deeper else add_mlp_units(model, units, seed)
            name = "num_hidden_layers" if is_deeper else "intermediate_size"
            change = {name: [getattr(m.config, name) for m in (model, mutant)]}
        write_model(mutant, actor, self.folder / f"{kind}-{seed}")
        weights = {"model": f"{MEMBERS}/{kind}-{seed}", "adapter": None}
        return Child(parent.config, weights, change)

    def save(self, champion: Individual, folder: Path) -> dict[str, Any]:
        """Nothing to write: weights lie in their members' folders."""
        actor = self._actor(champion.state)
        return {"best/folder": actor.model, "best/adapter": actor.adapter}

    def _train(self, member: Individual) -> Weights:
        folder, state = self.folder / f"{member.id}/train", member.state
        own = derive_seed(self.run_settings.seed, "member", member.id) % 2**32
        run = replace(self.run_settings, run_dir=str(folder), seed=own)
        actor = replace(self._actor(state), lora=member.config.actor.lora)
        if member.config.pairs is None:
            preferences = member.config.preferences
            self.num_env_steps += preferences.num_states * preferences.num_candidates
        try:
            train_simpo.main(replace(member.config, run=run, actor=actor))
        except NoPairsError as error:
            log.warning("member %d stays as it is: %s", member.id, error)
            return state
        except (NonFiniteError, CollapseError) as error:
            log.warning("member %d is given up: %s", member.id, error)
            self.failed.add(member.id)
            return state
        trained = f"{MEMBERS}/{member.id}/train/actor"
        is_adapter = (folder / "actor" / ADAPTER_RECORD).is_file()
        return state | {"adapter" if is_adapter else "model": trained}

    def _evaluate(self, member: Individual) -> float:
        if member.id in self.failed:
            return np.nan
        name = f"{member.id}/evaluation"
        fitness = self._judge(member, name, self.run_settings.seed)
        episodes = read_episodes(self.folder / name / "episodes.json")
        self.num_env_steps += sum(episode.num_chains for episode in episodes)
        return fitness

    def _judge(self, member: Individual, name: str, seed: int) -> float:
        run = replace(self.run_settings, run_dir=str(self.folder / name), seed=seed)
        actor = self._actor(member.state)
        greedy = recast(actor, GuidedActorConfig, decoding="free", temperature=0.0)
        world, how = self.given.environment, self.judging.evaluation
        config = EvaluateConfig(run, environment=world, actor=greedy, evaluation=how)
        figures, fitness = evaluate.main(config), self.judging.fitness
        return figures.get(f"practised/{fitness}", figures[fitness])

    def _actor(self, state: Weights) -> ActorConfig:
        """The actor of these weights, wherever the search's folder lies by now."""
        root = self.folder.parent
        places = {key: str(root / n) if n and _is_own(n) else n for key, n in state.items()}
        return replace(self.given.actor, lora=None, **places)


def _is_own(name: str) -> bool:
    """Whether a folder is the search's own."""
    return name.startswith(f"{MEMBERS}/")
