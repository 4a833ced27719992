"""What a critic's folder, an encoder's parts, a server and a trainer's arguments say is checked."""

import json
import logging
import shutil
from types import SimpleNamespace

import pytest
from openenv_servers import FaultyGame

from lactchain import CollectConfig, CriticConfig, PlayerConfig, TrainingConfig
from lactchain.baselines.settings import LoopConfig
from lactchain.errors import ConfigError, DataError, EnvironmentFault
from lactchain.models.critic import EmbeddingCritic, resolve_pooling
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.trainers.base import training_arguments
from lactchain_extras.ecosystems.openenv_client import OpenEnvWorld
from lactchain_extras.stages.panel import PanelConfig
from lactchain_extras.weights.merging import export_actor


@pytest.fixture(scope="module")
def critic(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("critic")
    EmbeddingCritic.from_config(CriticConfig(str(weights / "encoder"))).save(folder)
    (folder / "manifest.json").unlink(missing_ok=True)
    return folder


OTHER_VALUES = {
    "gamma": ("0.9", float("nan"), 2.0, None, True),
    "max_length": (0, "512"),
    "mode": ("zzz",),
    "discount_per": ("zzz",),
    "pooling": ("cls", None),
    "instruction": (5,),
    "dtype": ("float99",),
    "load_in_4bit": ("false",),
    "value_scale": (0, float("inf")),
    "value_offset": (float("nan"), True, 10**400),
}


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_what_a_critic_says_of_its_values_is_of_its_type(critic, tmp_path, name):
    folder = shutil.copytree(critic, tmp_path / "critic")
    stored = json.loads((critic / "critic_config.json").read_text())
    for value in OTHER_VALUES[name]:
        (folder / "critic_config.json").write_text(json.dumps(stored | {name: value}))
        told = rf"critic_config\.json: {name}: expected .*copy the critic"
        with pytest.raises(DataError, match=told):
            EmbeddingCritic.read_meaning(folder)


def test_a_critic_is_not_exported_as_an_actor(critic, tmp_path):
    with pytest.raises(DataError, match="expected a language model, got a critic"):
        export_actor(PlayerConfig(str(critic)), tmp_path, "float32")


def encoder(folder, parts, **pooling):
    """A folder of sentence-transformers that lists such parts, by folder, and how it pools."""
    pools = folder / dict(parts).get("Pooling", "pool")
    pools.mkdir(parents=True)
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": p} for kind, p in parts]
    (folder / "modules.json").write_text(json.dumps(modules))
    (pools / "config.json").write_text(json.dumps(pooling))
    return CriticConfig(str(folder))


def test_an_encoder_pools_as_the_parts_that_its_folder_lists(tmp_path, caplog):
    listed = [("Transformer", ""), ("Pooling", "pool")]
    assert resolve_pooling(encoder(tmp_path / "a", listed, pooling_mode_mean_tokens=True)) == "mean"
    unlisted = encoder(tmp_path / "b", listed[:1], pooling_mode_cls_token=True)
    assert resolve_pooling(unlisted) == "last"
    for number, flag in enumerate(("true", 1)):
        with pytest.raises(ConfigError, match="got cls_token in .*pool/config.json"):
            resolve_pooling(encoder(tmp_path / f"c{number}", listed, pooling_mode_cls_token=flag))
    caplog.set_level(logging.WARNING)
    dense = [*listed, ("Dense", "2_Dense")]
    assert resolve_pooling(encoder(tmp_path / "d", dense, pooling_mode_mean_tokens=True)) == "mean"
    assert "Dense is left out" in caplog.text
    (tmp_path / "d/pool/config.json").unlink()
    with pytest.raises(DataError, match="pool/config.json: no such file"):
        resolve_pooling(CriticConfig(str(tmp_path / "d")))
    (tmp_path / "d/modules.json").write_text("{")
    with pytest.raises(DataError, match=r"modules\.json: damaged"):
        resolve_pooling(CriticConfig(str(tmp_path / "d")))


REPLY = {"observation": {"text": "a"}, "reward": 1.0, "done": False}


@pytest.fixture(scope="module")
def world():
    with FaultyGame().running() as url:
        yield OpenEnvWorld(url)


OTHER_PARTS = [
    *({"done": done} for done in ("false", 2, None)),
    *({"reward": reward} for reward in ("1.5", True, [1], 10**400)),
    *({"observation": observation} for observation in (None, "a")),
    {"observation": {"text": "a", "truncated": "false"}},
    {"observation": {"text": "a", "success": "false"}},
    {"metadata": ["a"]},
    {"metadata": {"terminated": "no"}},
]
NO_REPLIES = [[], {}, {"data": REPLY}, {"type": "pong", "data": REPLY}, {"type": "x", "data": None}]
NO_REPLIES += [{"type": kind, "data": REPLY} for kind in (["observation"], {}, 5, True)]
NO_REPLIES += [{"type": "observation", "data": REPLY | change} for change in OTHER_PARTS]


def answered(world, monkeypatch, reply):
    """What the world makes of a message of its server."""
    told = SimpleNamespace(send=lambda text: None, recv=lambda timeout: json.dumps(reply))
    monkeypatch.setattr(world, "_socket", told)
    with pytest.raises(EnvironmentFault) as fault:
        world.reset()
    return str(fault.value)


@pytest.mark.parametrize("reply", NO_REPLIES)
def test_a_message_that_is_no_reply_is_refused_by_its_server(world, monkeypatch, reply):
    line = answered(world, monkeypatch, reply)
    assert line.startswith(f"{world.url}: expected an observation of fields")


def test_an_error_of_a_server_and_a_field_that_it_lacks_are_one_line(world, monkeypatch):
    reply = {"type": "error", "data": {"code": "C", "message": "a\n" * 100_000}}
    line = answered(world, monkeypatch, reply)
    assert "C: a a a" in line and len(line) < 600 and "\n" not in line
    monkeypatch.setattr(world, "show", "board")
    line = answered(world, monkeypatch, {"type": "observation", "data": REPLY})
    assert "expected an observation of fields" in line


@pytest.mark.parametrize("extra", [
    {"ignore_data_skip": True},
    {"push_to_hub": True},
    {"hub_token": "secret"},
    {"fsdp": "full_shard"},
    {"optim": "galore_adamw"},
    *({"max_grad_norm": norm} for norm in ("x", -1)),
    *({"weight_decay": decay} for decay in ("0.1", None)),
    {"adam_beta1": 2.0},
    {"lr_scheduler_type": "cosine_with_min_lr"},
    {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"zzz": 1}},
])  # fmt: skip
def test_what_a_training_would_refuse_or_send_is_refused_before_it(tmp_path, extra):
    with pytest.raises(ConfigError, match=r"training\.extra") as error:
        training_arguments(TrainingConfig(extra=extra), tmp_path, 0)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("count", [0, 10**9, 10**30])
@pytest.mark.parametrize(("config", "name"), [
    (PanelConfig, "count"), (CollectConfig, "num_episodes"), (EvaluationConfig, "num_starts"),
    (LoopConfig, "num_members"),
])  # fmt: skip
def test_what_is_held_in_memory_is_counted_in_millions(config, name, count):
    with pytest.raises(ValueError, match="expected a number in"):
        config(**{name: count})
