"""What a command names is looked for at once, and a run stands for what it has saved."""

import errno
import json
import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import other_worlds  # noqa: F401  - registers them
import pytest
from run_setups import start
from script_setups import GRID, config_of, run_here

import lactchain
from lactchain import ConfigError, DataError, train_agent
from lactchain.baselines.settings import TrainCQLConfig, TrainDQNConfig, WorldConfig
from lactchain.config.parsing import with_values
from lactchain.config.settings import EnvironmentConfig, GuidedActorConfig, RunConfig
from lactchain.data.sources import open_pairs, open_trajectories
from lactchain.models.weights import ADAPTER_FILES, ADAPTER_RECORD, RECORDED, resolve_weights
from lactchain.runs import distributed
from lactchain.runs.folder import has_produced
from lactchain.runs.preflight import look_up
from lactchain.stages.evaluate import EvaluateConfig
from lactchain.stages.rounds import full_keys
from lactchain.stages.train_critic import TrainCriticConfig
from lactchain.stages.train_simpo import TrainSimPOConfig
from lactchain.storage.files import stand_for
from lactchain.storage.manifests import result_of, write_run_file
from lactchain_extras.stages.export import ExportConfig


def saved(folder: Path, *results: str) -> Path:
    for result in results:
        (folder / result).mkdir(parents=True)
    write_run_file(folder, {})
    return folder


NO_WORLD = {
    "Taxxi-v4": "no Gymnasium environment 'Taxxi-v4': .*Did you mean: `Taxi`",
    "nomodule:my/Env-v0": "nomodule:my/Env-v0 is of the module nomodule, .* add --import nomodule",
    "LunarLander-v3": "LunarLander-v3 needs a package: .*pip install",
}


@pytest.mark.parametrize(("env_id", "message"), NO_WORLD.items())
def test_a_missing_environment_is_one_line_for_every_kind_of_agent(env_id, message, tmp_path):
    if env_id == "LunarLander-v3" and find_spec("Box2D"):
        pytest.skip("Box2D is installed")
    world, run = EnvironmentConfig(env_id), RunConfig(run_dir=str(tmp_path / "run"))
    dqn = TrainDQNConfig(run=run, environment=WorldConfig(env_id))
    for look, config in (
        (lactchain.make_language_env, world),
        (look_up, EvaluateConfig(environment=world)),
        (look_up, dqn),
        (train_agent, dqn),
    ):
        assert not (tmp_path / "run").exists()
        with pytest.raises(ConfigError, match=f"environment.id: {message}"):
            look(config)
    assert not has_produced(tmp_path / "run")


def test_a_mistyped_command_claims_nothing_and_loads_nothing_heavy(tmp_path, weights, monkeypatch):
    program = (
        "import sys; sys.argv[0] = 'evaluate'\n"
        "from lactchain.runs.process import launch\n"
        "from lactchain.stages.evaluate import EvaluateConfig, main\n"
        "try:\n    launch(main, EvaluateConfig)\n"
        "finally:\n    print(sorted({'torch', 'transformers', 'pandas'} & set(sys.modules)))\n"
    )
    named = ["--run.run_dir", tmp_path / "run", "--actor.model", weights / "actor"]

    def ended(*words):
        process = start(program, *named, *words)
        return *process.communicate(timeout=60), process.returncode

    for words in (["--environment.id", "lactchain/GridWurld-v0"], ["--actor.values", "runs/no"]):
        said, error, code = ended(*words)
        assert (code, said) in ((2, "[]\n"), (3, "[]\n")), error
        assert error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    # The second of two processes says nothing that the first one says.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ended("--actor.modell", "x")[1:] == ("", 2)


def test_what_is_missing_is_named_by_its_key_unless_nobody_reads_it(tmp_path, weights):
    config = config_of("make_preferences", weights, tmp_path / "run")
    nothing = str(tmp_path / "nothing")
    for key in ("critic", "trajectories", "actor.adapter", "actor.model"):
        changed = with_values(config, {key: nothing})
        with pytest.raises(DataError, match=f"^{key}: {nothing}: no such folder"):
            look_up(changed)
        look_up(changed, may_be_missing=True)  # for an estimate
    recorded = TrainCQLConfig(data=f"{tmp_path}/steps.h5")
    with pytest.raises(DataError, match=f"^data: {tmp_path}/steps.h5: no such file"):
        look_up(recorded)
    (tmp_path / "steps.h5").touch()
    assert look_up(recorded) == recorded
    pipeline = config_of("run_pipeline", weights, tmp_path / "run", {"actor.model": nothing})
    assert look_up(pipeline) == pipeline
    with pytest.raises(DataError, match=f"^actor.model: {nothing}: no such folder"):
        look_up(replace(pipeline, tiny=None))
    critic = saved(tmp_path / "trained", "critic") / "critic"
    exported = ExportConfig(actor=replace(config.actor, model=nothing), critic=str(critic))
    assert look_up(exported) == exported


def test_a_missing_run_is_not_taken_for_a_model_of_the_hub():
    with pytest.raises(DataError, match="correct its name") as error:
        look_up(EvaluateConfig(actor=GuidedActorConfig("runs/nothing")))
    assert "--download" not in str(error.value)
    with pytest.raises(DataError, match="--download"):
        look_up(EvaluateConfig(actor=GuidedActorConfig("someone/nothing-7B")))


def test_a_run_stands_for_its_results(tmp_path):
    run = saved(tmp_path / "run", "actor", "critic", "values", "trajectories", "pairs")
    grammar = {"environment": GRID}
    judged = EvaluateConfig(**grammar, actor=GuidedActorConfig(str(run), values=str(run)))
    found = look_up(judged).actor
    assert (found.model, found.values) == (f"{run}/actor", f"{run}/values")
    saved_here = dict.fromkeys(("actor.model", "critic", "pairs"), str(run))
    found = look_up(with_values(TrainSimPOConfig(**grammar), saved_here))
    assert (found.critic, found.pairs) == (f"{run}/critic", f"{run}/pairs")
    critic = replace(TrainCriticConfig().critic, checkpoint=str(run))
    found = look_up(TrainCriticConfig(**grammar, critic=critic, trajectories=str(run)))
    assert found.critic.checkpoint == f"{run}/critic"
    assert found.trajectories == f"{run}/trajectories"
    encoder = replace(critic, checkpoint=None, model=str(run))
    with pytest.raises(DataError, match=r"^critic.model: .*give it as critic\.checkpoint$"):
        look_up(TrainCriticConfig(**grammar, actor=found.actor, critic=encoder, trajectories="."))


def test_an_adapter_of_a_run_comes_with_its_base_and_what_was_not_saved_is_named(tmp_path):
    run, model = saved(tmp_path / "run", "actor"), tmp_path / "model"
    record = dict.fromkeys(RECORDED, "weights/base") | {"sha256": dict.fromkeys(ADAPTER_FILES, "")}
    (run / "actor" / ADAPTER_RECORD).write_text(json.dumps(record))
    found = look_up(EvaluateConfig(actor=GuidedActorConfig(str(run)))).actor
    assert (found.model, found.adapter) == ("weights/base", f"{run}/actor")
    other = saved(tmp_path / "other", "critic")
    with pytest.raises(DataError, match="^actor.model: .*/other: this run has saved no actor"):
        look_up(EvaluateConfig(actor=GuidedActorConfig(str(other))))
    model.mkdir()
    for name in ("config.yaml", "config.json"):  # a model that has such a file is no run
        (model / name).touch()
    config = EvaluateConfig(actor=GuidedActorConfig(str(model)))
    assert look_up(config) == config


def test_an_actor_that_is_asked_in_other_words_than_it_was_trained_with_is_told(tmp_path, caplog):
    run = saved(tmp_path / "run", "actor")
    write_run_file(run, {"config": {"environment": {"template": "brief", "history": 1}}})
    actor = GuidedActorConfig(str(run))
    look_up(EvaluateConfig(environment=replace(GRID, template="brief"), actor=actor))
    assert caplog.messages == []
    look_up(EvaluateConfig(environment=replace(GRID, template=None), actor=actor))
    (line,) = caplog.messages
    assert 'trained with environment.template "brief", and is asked with null' in line
    cards = EnvironmentConfig("others/Blackjack-v0", template=None)  # whose view has one alone
    look_up(EvaluateConfig(environment=cards, actor=actor))
    assert len(caplog.messages) == 1


def test_a_pipeline_stands_for_its_results_also_as_a_copy(weights, finished, tmp_path):
    """Its links are kept or followed, as who copies likes; and the copy goes on."""
    run = finished("run_pipeline")
    for name in ("actor", "critic"):
        assert not Path(os.readlink(run / name)).is_absolute()
    assert len(open_trajectories(run)) >= 96 and open_pairs(run)
    for name, keep_links in (("kept", True), ("followed", False)):
        copy = shutil.copytree(run, tmp_path / name, symlinks=keep_links)
        assert (copy / "actor").is_symlink() == keep_links
        for key in ("actor", "critic"):
            assert result_of(copy, key) == copy / key
        assert lactchain.load_critic(copy).gamma == 0.9
        values = {"actor.model": str(copy), "evaluation.num_samples": 0}
        asked = config_of("evaluate", weights, tmp_path / f"{name}_again", values)
        assert run_here("evaluate", look_up(asked))["num_episodes"] == 48
    (copy / "summary.json").unlink()
    run_here("run_pipeline", config_of("run_pipeline", weights, copy))
    assert (copy / "actor").is_symlink()


def test_a_name_is_of_a_copy_where_there_are_no_links(tmp_path, monkeypatch):
    refuse = Mock(side_effect=OSError(errno.EPERM, "Operation not permitted"))
    run = saved(tmp_path / "run", "round_1/simpo/actor", "round_2/simpo/actor")
    (run / "round_1/simpo/actor/weights").write_text("1")
    (run / ".actor.tmp/half").mkdir(parents=True)  # of a copy that was cut short
    monkeypatch.setattr(os, "symlink", refuse)
    for number in (2, 1):
        stand_for(run / "actor", f"round_{number}/simpo/actor")
    assert (run / "actor/weights").read_text() == "1" and not (run / "actor").is_symlink()
    monkeypatch.undo()
    stand_for(run / "actor", "round_2/simpo/actor")
    assert os.readlink(run / "actor") == "round_2/simpo/actor"
    stand_for(run / "actor", None)
    assert {path.name for path in run.iterdir()} == {"environment.json", "round_1", "round_2"}


def test_errors_of_stages_name_the_settings_of_the_pipeline(weights, tmp_path):
    values = {"critic.config.max_length": 10**6}
    with pytest.raises(ConfigError, match="^critic.config.max_length: expected"):
        run_here("run_pipeline", config_of("run_pipeline", weights, tmp_path / "run", values))
    for part, said, told in (
        ("simpo", "training.extra.x: no such argument", "simpo.training.extra.x: no such"),
        ("warm_start", "target_skill: expected 0.2", "warm_start.target_skill: expected 0.2"),
        ("simpo", "actor.lora: expected an adapter", "actor.lora: expected"),
    ):
        with pytest.raises(ConfigError, match=f"^{told}"), full_keys(part):
            raise ConfigError(said)


def test_processes_for_gpus_that_are_not_there_are_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ConfigError, match="8 processes on GPUs, and torch finds none"):
        distributed.check_launcher()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1,-1")  # configs/accelerate/cpu_2_processes.yaml
    distributed.check_launcher()


NAMING = {
    "actor.model": lambda p: EvaluateConfig(actor=GuidedActorConfig(model=p)),
    "actor.adapter": lambda p: EvaluateConfig(actor=GuidedActorConfig(model=".", adapter=p)),
    "trajectories": lambda p: TrainCriticConfig(trajectories=p),
    "pairs": lambda p: TrainSimPOConfig(pairs=p),
    "data": lambda p: TrainCQLConfig(data=p),
}


@pytest.mark.parametrize("key", NAMING)
@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
def test_a_setting_that_names_a_pipe_or_a_device_is_refused_and_not_read(tmp_path, key, kind):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to(tmp_path / "pipe")
    place = Path(os.devnull) if kind == "device" else tmp_path / kind
    with pytest.raises(DataError, match=f"{key}: {place}: expected .*, got a pipe or device"):
        look_up(NAMING[key](str(place)))


def test_an_adapter_is_no_model_and_names_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(DataError, match=r"expected a model, got an adapter; .*org/base.*adapter"):
        resolve_weights(tmp_path)
    (tmp_path / "config.json").write_text("{}")  # merged, with the adapter left beside it
    assert resolve_weights(tmp_path) == tmp_path
