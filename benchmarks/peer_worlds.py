"""The worlds that `peers.py` compares methods in: who learns, what it is worth, what bounds it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from measuring import ROOT
from wordle_tree import BestWords
from worlds import WORLDS as PRESETS

from lactchain.config.parsing import parse
from lactchain.config.settings import ActorConfig, EnvironmentConfig, GuidedActorConfig, recast
from lactchain.data.exact_values import expected_figures
from lactchain.data.rollouts import Rollouts, evaluate
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.scripted import RememberingPolicy
from lactchain.environments.views import shipped_view
from lactchain.models.actor import LanguageActor
from lactchain.stages.evaluate import enough_per_start
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.run_pipeline import sized
from lactchain.types import ChainGrammar, Policy
from lactchain_extras.ecosystems.tasks import manifest
from lactchain_extras.stages.make_offline_data import behavior_policy

PRESET = ROOT / "configs/run_pipeline"
UNKNOWN_LAKE = "peer_worlds:peers/UnknownLake-v0"
CLONED_AT_RANDOM = ("--warm_start.behavior.competent_fraction", "0")
"""Where a tenth of good chains would make the warm start as good as can be."""


@dataclass(frozen=True)
class World:
    """A world, and what it takes to compare methods in it.

    Attributes:
        preset: command line of the pipeline, that of `configs/run_pipeline/tiny.yaml` by default.
        budget: environment steps of each method.
        cpu_seconds: of training, after which a method is stopped even with steps left.
        practised_id: the world to learn in, where that is to know less than the one that measures.
        num_rounds: of the methods that go by rounds, at most.
        settings: of the methods, where they differ from their own.
        floors: scripted policies to compare with where nothing is known exactly, by their names in
            configurations; the last one stands for the optimum.
        num_games: played from each start to measure an actor; None: as evaluations have it.
        without: methods that do not play here.
    """

    preset: tuple[str, ...]
    budget: int
    cpu_seconds: float
    practised_id: str | None = None
    num_rounds: int = 12
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    floors: tuple[str, ...] = ()
    num_games: int | None = None
    without: tuple[str, ...] = ()

    def pipeline(self, folder: Path, seed: int) -> RunPipelineConfig:
        """The pipeline of this world, with numbers in the place of nulls."""
        where = ["--run.run_dir", str(folder), "--run.seed", str(seed)]
        return sized(parse(RunPipelineConfig, [*self.preset, *where]))

    def practised(self, config: EnvironmentConfig) -> EnvironmentConfig:
        """The world that methods learn in."""
        return config if self.practised_id is None else replace(config, id=self.practised_id)


def tiny(name: str) -> tuple[str, ...]:
    """The preset of a world of `worlds.py`."""
    return ("--config", str(PRESET / "tiny.yaml"), *PRESETS[name])


def shipped(name: str) -> tuple[str, ...]:
    """A configuration of the pipeline by its name."""
    return ("--config", str(PRESET / f"{name}.yaml"))


WORLDS = {
    "frozen_lake_8x8": World(tiny("frozen_lake_8x8"), budget=350_000, cpu_seconds=250),
    "gridworld_4x4": World(
        tiny("gridworld_4x4"),
        budget=1_000_000,
        cpu_seconds=400,
        settings={"by_return": {"num_states": 1920}},
    ),
    "slippery_lake": World(
        (*tiny("slippery_lake"), *CLONED_AT_RANDOM),
        budget=600_000,
        cpu_seconds=150,
        practised_id=UNKNOWN_LAKE,
        settings={"grpo": {"dice": 200}},
    ),
    "maze_partial": World(
        shipped("maze_partial_tiny"),
        budget=250_000,
        cpu_seconds=200,
        settings={
            "by_return": {"num_states": 160},
            "ilql": {
                "gamma": 0.98, "expectile": 0.7, "bootstrap": "completion", "cql_weight": 1.0,
                "head_size": 256, "tau": 0.1, "learning_rate": 3e-3, "group_by": "prompt",
            },
        },
        floors=("random", "legal", "optimal"),
        without=("grpo",),
    ),
    "wordle": World(
        shipped("wordle_tiny"),
        budget=450_000,
        cpu_seconds=240,
        settings={
            "grpo": {"dice": 4096},
            "ilql": {
                "expectile": 0.7, "bootstrap": "completion", "head_size": 256, "tau": 0.05,
            },
        },
        floors=("random", "consistent", "lookahead"),
        num_games=1024,
    ),
}  # fmt: skip


def unknown_lake(**kwargs: Any) -> LanguageEnv:
    """FrozenLake whose dynamics nobody is told, so that every method has to play to know them."""
    env = gym.make("FrozenLake-v1", **kwargs)
    return LanguageEnv(env, replace(shipped_view(env.unwrapped), model=None))


gym.register("peers/UnknownLake-v0", entry_point="peer_worlds:unknown_lake")


# --- what a policy is worth ----------------------------------------------------------------------


def measure(
    policy: Policy, config: EnvironmentConfig, num_games: int | None = None
) -> dict[str, float]:
    """Success and return of a policy that always says the same to a text, from every start state.

    Without chance its only episode from each tells all; with chance that is known it is computed.
    All policies meet the same dice.
    """
    rollouts = Rollouts(config, num_envs=512)
    player = policy if rollouts.deterministic else RememberingPolicy(policy)
    num_starts = len(rollouts.env.start_states())
    _, played = evaluate(player, rollouts, 0, num_games or enough_per_start(rollouts, num_starts))
    exact = expected_figures(policy, rollouts.env)
    return {
        "success": exact.get("expected_success", played["success_rate"]),
        "return": exact.get("expected_return", played["episode_return"]),
        "invalid": played["invalid_rate"],
    }


def bounds(world: World, config: EnvironmentConfig) -> dict[str, dict[str, float]]:
    """Success and return of policies that learn nothing, the worst first and the best last.

    Exact, of random chains and of the best ones; or of scripted policies that play.
    """
    env = make_language_env(config)
    if not world.floors:
        known = manifest(config, env)
        return {"random": known["floors"]["random"], "optimum": known["optimum"]}
    told, found = replace(config, template=None, history=1), {}
    for name in world.floors:
        env = make_language_env(told)
        policy = BestWords(env) if name == "lookahead" else behavior_policy(env, {name: 1.0})
        _, played = evaluate(policy, told, 0, world.num_games or 200)
        found[name] = {"success": played["success_rate"], "return": played["episode_return"]}
    return found


def greedy(config: ActorConfig, grammar: ChainGrammar) -> LanguageActor:
    """A trained actor as it is measured: its best completion, freely decoded."""
    return LanguageActor.from_config(as_measured(config), grammar)


def as_measured(config: ActorConfig) -> GuidedActorConfig:
    """How an actor is asked when it is measured."""
    return recast(config, GuidedActorConfig, decoding="free", temperature=0.0)
