"""Every shipped configuration is one of its script, and says what the others of its kind say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_models import SHAPES
from run_setups import ROOT
from script_setups import config_class

from lactchain.config.parsing import dump, keys, parse
from lactchain.config.settings import RunConfig, SamplerConfig, TrainingConfig, recast
from lactchain.stages import run_pipeline
from lactchain.stages.sizing import fill
from lactchain.stages.stage_run import BatchSettings
from lactchain.stages.world_facts import measure_world
from lactchain_extras.memory import memory_of
from lactchain_extras.stages.token_values import batches_of

SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
CLASSIC = {"train_cql", "train_ddpg", "train_dqn", "train_ppo"}  # no language model, one size
FILES = sorted(f for f in (ROOT / "configs").glob("*/*.yaml") if f.parent.name != "accelerate")
LARGE = "gridworld_mistral7b"
H100_BYTES, RTX4090_BYTES = 80e9, 24 * 2**30


def load(name: str):
    file = str(ROOT / "configs" / f"{name}.yaml")
    return parse(config_class(Path(name).parent.name), ["--config", file])


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_configuration_is_one_of_its_script_and_survives_being_written(file, tmp_path):
    config = load(f"{file.parent.name}/{file.stem}")
    (tmp_path / "again.yaml").write_text(dump(config))
    assert parse(type(config), ["--config", str(tmp_path / "again.yaml")]) == config
    assert all(len(line) <= 100 for line in file.read_text().splitlines())


@pytest.mark.parametrize("setting", ["gridworld_tiny", LARGE])
def test_every_script_has_a_configuration_for_both_sizes(setting):
    named = {setting, "tiny"} if setting == "gridworld_tiny" else {setting}
    scripts = set(SCRIPTS) - CLASSIC - {"compare", "panel"}
    assert {f.parent.name for f in FILES if f.stem in named} == scripts
    assert {f.parent.name for f in FILES} == set(SCRIPTS)


MOST_SETTINGS = {
    "train_critic": 57, "run_pipeline": 108, "train_simpo": 55, "train_bc": 51, "evaluate": 43,
    "collect_rollouts": 34,
}  # fmt: skip
"""What `--help` shows; a new one should take the place of another. Five are of `actor.served`."""


@pytest.mark.parametrize("script", MOST_SETTINGS)
def test_a_script_has_no_more_settings_than_people_can_read(script):
    known = {*keys(config_class(script))}
    parts = {key.rpartition(".")[0] for key in known}
    assert len(known - parts) <= MOST_SETTINGS[script]


def test_the_tiny_stages_are_those_of_the_tiny_pipeline():
    def tiny(script):
        return load(f"{script}/gridworld_tiny")

    preset = load("run_pipeline/tiny")
    whole, _ = fill(preset, measure_world(preset.environment), processes=1)
    prepare, cloning, critic = map(tiny, ("prepare_weights", "train_bc", "train_critic"))
    simpo, pairs, rollouts = map(tiny, ("train_simpo", "make_preferences", "collect_rollouts"))
    assert (prepare.tiny, prepare.warm_start) == (whole.tiny, whole.warm_start)
    assert cloning.behavior == whole.warm_start.behavior
    assert cloning.training == recast(whole.warm_start.training, TrainingConfig)
    weights = {"model": "weights/tiny-encoder", "dtype": "float32"}
    assert critic.critic == replace(whole.critic.config, **weights)
    assert rollouts.collect == critic.collect == whole.critic.collect
    assert critic.training == whole.critic.training
    assert simpo.preferences == pairs.preferences == whole.simpo.preferences
    assert (simpo.loss, simpo.training) == (whole.simpo.loss, whole.simpo.training)
    world = replace(whole.environment, max_chains=None)  # the view's own is as many
    assert tiny("play").environment == replace(world, kwargs={"render_mode": "ansi"})
    for config in (prepare, cloning, critic, simpo, pairs, rollouts, tiny("evaluate")):
        assert config.environment == world, type(config)
    assert simpo.actor == replace(whole.actor, model="weights/tiny-actor", dtype="float32")
    assert pairs.actor == recast(simpo.actor, SamplerConfig)


def test_the_large_stages_are_those_of_the_large_pipeline():
    whole = load(f"run_pipeline/{LARGE}")
    critic, simpo = load(f"train_critic/{LARGE}"), load(f"train_simpo/{LARGE}")
    assert critic.critic == whole.critic.config
    for part in ("collect", "training"):
        assert getattr(critic, part) == getattr(whole.critic, part), part
    for part in ("preferences", "loss", "training"):
        assert getattr(simpo, part) == getattr(whole.simpo, part), part
    assert simpo.actor == whole.actor
    assert simpo.critic == f"{critic.run.run_dir}/critic"
    without_actor = (
        "compare", "make_offline_data", "panel", "prepare_weights", "report", "search", "serve",
    )  # fmt: skip
    for name in set(SCRIPTS) - CLASSIC - {*without_actor}:
        assert load(f"{name}/{LARGE}").actor.model in SHAPES
    assert load(f"report/{LARGE}").run_dir == whole.run.run_dir
    assert load(f"search/{LARGE}").language.train.actor.model in SHAPES


def test_the_smaller_card_makes_the_same_updates():
    """In other precision, and in smaller micro-batches."""

    def unsplit(stage):
        rows = stage.training.batch_size * stage.training.gradient_accumulation_steps
        training = replace(stage.training, batch_size=rows, gradient_accumulation_steps=1)
        return replace(stage, training=training)

    def as_one(name):
        whole = load(f"run_pipeline/{name}")
        critic = replace(whole.critic, config=replace(whole.critic.config, dtype="auto"))
        actor = replace(whole.actor, dtype="auto")
        stages = {"critic": unsplit(critic), "simpo": unsplit(whole.simpo)}
        return replace(whole, run=RunConfig(), actor=actor, **stages)

    assert as_one("gridworld_mistral7b_24gb") == as_one("gridworld_mistral7b")


ANSWERING = BatchSettings("evaluation.num_envs", "actor.max_new_tokens")
LEARNING = BatchSettings("training.batch_size", "actor.max_new_tokens")


@pytest.mark.parametrize(("name", "card", "batches"), [
    (f"train_bc/{LARGE}", H100_BYTES, [LEARNING]),
    (f"train_ilql/{LARGE}", H100_BYTES, batches_of(heads=2)),
    (f"evaluate/{LARGE}", H100_BYTES, [ANSWERING]),
    (f"run_pipeline/{LARGE}", H100_BYTES, run_pipeline.BATCHES),
    (f"run_pipeline/{LARGE}_24gb", RTX4090_BYTES, run_pipeline.BATCHES),
])  # fmt: skip
def test_the_large_stages_fit_on_their_gpu(name, card, batches, tmp_path, monkeypatch):
    """With a model that ranks beside, and a fifth of the card to spare."""
    monkeypatch.setattr("lactchain.models.loading.device", lambda: torch.device("cuda"))
    monkeypatch.setattr("lactchain.models.loading.computes_in_bfloat16", lambda: True)
    monkeypatch.setattr("lactchain.models.weights.WEIGHTS_FOLDER", tmp_path)
    for model, shape in SHAPES.items():
        shape.save_pretrained(tmp_path / model)
    sizes = [size for batch in batches if (size := memory_of(load(name), batch))]
    assert sizes
    for size in sizes:
        beside = 0 if "gradients" in size else size["weights"]
        assert sum(size.values()) + beside < 0.8 * card
