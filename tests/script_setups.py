"""Scripts on a 2x2 grid with models of one layer: seconds for a whole pipeline.

`run_here` calls a script's main; `start` runs the script in a process of its own, forked from a
server that has torch and transformers loaded already, so that killing it costs next to nothing.
"""

import functools
import hashlib
import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import training_setups

from lactchain import Action, dump, launch, read_pairs, read_trajectories
from lactchain.config import settings
from lactchain.config.parsing import with_values
from lactchain.config.weights import TinyModelConfig
from lactchain.data.base_models import prepare_tiny_actor, prepare_tiny_encoder
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.pipeline_config import ActorStageConfig, CriticStageConfig
from lactchain.stages.train_bc import BehaviorConfig, WarmStartConfig
from lactchain_extras.stages import export
from lactchain_extras.stages.export import ExportConfig
from lactchain_extras.stages.make_offline_data import RecordingConfig
from lactchain_extras.stages.train_mc import TrainMCConfig
from lactchain_extras.token_values.settings import ValueConfig

SHAPE = TinyModelConfig(
    hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32
)
LORA = settings.LoraSettings(r=2)
GRID = settings.EnvironmentConfig(
    kwargs={"size": 2},  # 48 start states
    template="{x} {y} {orientation} {goal_x} {goal_y}",
    max_chain_length=3,  # 14 chains
    max_chains=4,
)
TRAINING = settings.TrainingConfig(
    batch_size=16, learning_rate=1e-3, save_every_updates=2, extra={"logging_steps": 2}
)
COLLECT = settings.CollectConfig(num_episodes=96, num_envs=16, shard_size=16)
PREFERENCES = settings.PreferenceConfig(num_states=96, num_candidates=4, states_per_shard=16)
BEHAVIOR = BehaviorConfig(num_chains=64, max_random_length=2)
EVALUATION = EvaluationConfig(num_envs=32, num_samples=100)
SCRIPTS = Path(__file__).parent.parent / "scripts"
RESULTS = {
    "make_offline_data": ["trajectories"],
    "train_bc": ["actor/model.safetensors"],
    "collect_rollouts": ["trajectories"],
    "train_critic": ["trajectories", "critic/model.safetensors", "values.json"],
    "make_preferences": ["pairs"],
    "train_simpo": ["pairs", "actor/model.safetensors"],
    "evaluate": ["trajectories", "episodes.json"],
}


class Says:
    """A policy that answers by the number of the row, or always the same."""

    name = "says"

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked, self.batches = texts, [], []

    def act(self, observations: list[str], seeds: list[int]) -> list[Action]:
        self.asked += observations
        self.batches.append(len(observations))
        return [Action(self.texts[i % len(self.texts)]) for i in range(len(observations))]


class Finds:
    """A critic that finds a text, or a text with a completion, worth what a function says."""

    gamma, discount_per = 0.5, "action"

    def __init__(self, worth: Callable[..., float], mode: str = "value") -> None:
        self.worth, self.mode, self.asked = worth, mode, Counter()

    def values(self, observations: list[str], actions: list[str] | None = None) -> np.ndarray:
        self.asked.update(observations)
        rows = zip(observations) if actions is None else zip(observations, actions, strict=True)
        return np.array([float(self.worth(*row)) for row in rows])


@functools.cache
def config_class(script: str) -> type:
    """The config class that a script launches its stage with."""
    names = runpy.run_path(str(SCRIPTS / f"{script}.py"))
    return next(value for name, value in names.items() if name.endswith("Config"))


STAGES = [*RESULTS]
CLASSES = {name: config_class(name) for name in (*STAGES, "run_pipeline")}


def build_weights(folder: Path, shape: TinyModelConfig = SHAPE) -> Path:
    prepare_tiny_actor(folder / "actor", shape, GRID)
    prepare_tiny_encoder(folder / "encoder", folder / "actor")
    return folder


def config_of(
    script: str, weights: Path, run_dir: Path, values: dict[str, Any] | None = None, **changes: Any
) -> Any:
    """The smallest sensible configuration of a script; `values` are of dotted fields."""
    actor = settings.ActorConfig(str(weights / "actor"), max_new_tokens=8, decoding="constrained")
    sampler = settings.recast(actor, settings.SamplerConfig)
    player = settings.recast(actor, settings.PlayerConfig)
    critic = settings.CriticConfig(str(weights / "encoder"), gamma=0.9)
    greedy = settings.recast(actor, settings.GuidedActorConfig, decoding="free", temperature=0.0)
    parts = {
        "make_offline_data": {
            "behavior": RecordingConfig({"optimal": 0.4, "random": 0.6}),
            "collect": COLLECT,
        },
        "train_bc": {"actor": actor, "behavior": BEHAVIOR, "training": TRAINING},
        "collect_rollouts": {"actor": sampler, "collect": COLLECT},
        "train_critic": {
            "actor": player, "critic": critic, "collect": COLLECT, "training": TRAINING
        },
        "make_preferences": {"actor": sampler, "preferences": PREFERENCES},
        "train_simpo": {"actor": actor, "preferences": PREFERENCES, "training": TRAINING},
        "evaluate": {"actor": greedy, "evaluation": EVALUATION},
        "run_pipeline": {
            "tiny": SHAPE,
            "actor": actor,
            "warm_start": WarmStartConfig(BEHAVIOR, TRAINING),
            "critic": CriticStageConfig(config=critic, collect=COLLECT, training=TRAINING),
            "simpo": ActorStageConfig(preferences=PREFERENCES, training=TRAINING),
            "evaluation": EVALUATION,
            "num_rounds": 2,
        },
    }  # fmt: skip
    run = settings.RunConfig(run_dir=str(run_dir), keep_checkpoints=True)
    config = CLASSES[script](run=run, environment=GRID, **parts[script])
    return with_values(config, (values or {}) | changes)


def run_here(script: str, config: Any) -> dict[str, Any]:
    """The summary of a stage, run in this process."""
    return stage(script).main(config)


def run_smallest(script: str, *told: Any, **changes: Any) -> dict[str, Any]:
    """The summary of a stage of the configuration that `config_of` gives, run in this process."""
    return run_here(script, config_of(script, *told, **changes))


def finished_runs(weights: Path, new_folder: Callable[[str], Path]) -> Callable[[str], Path]:
    """Gives the run folder of a script, which is run once without interruption."""

    @functools.cache
    def folder_of(script: str) -> Path:
        folder = new_folder(script) / "run"
        run_here(script, config_of(script, weights, folder))
        return folder

    return folder_of


def weighted_runs(weights: Path, finished: Callable[[str], Path], folder: Path) -> Path:
    """Writes a run of every kind that leaves weights into a folder, which it returns."""
    (folder / "pipeline").symlink_to(finished("run_pipeline"))
    simpo = config_of("train_simpo", weights, folder / "simpo")
    run_here("train_simpo", replace(simpo, actor=replace(simpo.actor, lora=LORA)))
    values = TrainMCConfig(
        run=settings.RunConfig(str(folder / "mc")),
        environment=GRID,
        actor=simpo.actor,
        trajectories=str(folder / "pipeline/round_1/critic/trajectories"),
        mc=ValueConfig(),
        training=replace(TRAINING, max_steps=2),
    )
    run_here("train_mc", values)
    adapted = settings.PlayerConfig(str(weights / "actor"), adapter=str(folder / "simpo/actor"))
    export.main(ExportConfig(settings.RunConfig(str(folder / "export")), adapted))
    whole = settings.PlayerConfig(str(folder / "pipeline/actor"))
    export.main(ExportConfig(settings.RunConfig(str(folder / "export_all")), whole))
    critic = str((folder / "pipeline/critic").resolve())
    export.main(ExportConfig(settings.RunConfig(str(folder / "export_critic")), critic=critic))
    return folder


def stage(script: str) -> ModuleType:
    main = runpy.run_path(str(SCRIPTS / f"{script}.py"))["main"]
    return sys.modules[main.__module__]


def start(script: str, config: Any, *arguments: str, **variables: str) -> BaseProcess:
    """A process that runs a script, as from the command line; `variables` are its environment."""
    run_dir = Path(config.run.run_dir)
    file = run_dir.with_suffix(".yaml")
    file.write_text(dump(config))
    log = f"{run_dir}-{variables.get('RANK', 0)}.log"
    arguments = (variables, log, script, ["--config", str(file), *arguments])
    process = training_setups._preloaded().Process(target=_main, args=arguments)
    process.start()
    return process


def start_two(script: str, config: Any, second: Any = None) -> list[BaseProcess]:
    """Two such processes that work together (gloo); the second may have its own configuration."""
    group = training_setups.new_group()
    configs = {"0": config, "1": second or config}
    return [start(script, c, RANK=rank, LOCAL_RANK=rank, **group) for rank, c in configs.items()]


def _main(variables: dict[str, str], log: str, script: str, arguments: list[str]) -> None:
    training_setups.begin(variables, log, script, *arguments)
    launch(stage(script).main, config_class(script))


def contents(run_dir: Path, script: str) -> dict[str, Any]:
    """What a run must end with, however it was interrupted."""
    found = {}
    for name in RESULTS[script]:
        path = run_dir / name
        read = {"trajectories": read_trajectories, "pairs": read_pairs}.get(name)
        found[name] = read(path) if read else hashlib.sha256(path.read_bytes()).hexdigest()
    return found | {"summary": read_summary(run_dir)}


def read_summary(run_dir: Path) -> dict[str, Any]:
    """The summary of a run, without what depends on the clock."""
    return figures_of(json.loads((run_dir / "summary.json").read_text()))


def figures_of(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what depends on the clock."""
    timed = {name for name in summary if "time/" in name or name == "wall_seconds"}
    return {name: value for name, value in summary.items() if name not in timed}
