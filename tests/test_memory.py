"""Memory is estimated by formulas, and who runs out of it is told which settings to lower."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from random_models import ACTOR, SHAPES
from script_setups import CLASSES, GRID, LORA, config_of, run_here
from transformers import MistralConfig, MistralForCausalLM

from lactchain import ActorConfig, ConfigError, EmbeddingCritic, TrainingConfig
from lactchain.config.settings import ServedConfig
from lactchain.data.exact_values import exact_policy
from lactchain.models.headed import HeadedModel
from lactchain.models.loading import load_actor, readable
from lactchain.models.runtime import free_memory, is_out_of_memory
from lactchain.runs import process
from lactchain.stages import collect_rollouts, train_bc, train_critic
from lactchain.stages.search import LanguageConfig, SearchConfig
from lactchain.stages.stage_run import BatchSettings, enough_memory
from lactchain.stages.train_bc import TrainBCConfig
from lactchain_extras.memory import available_memory, memory_of

CLONING = BatchSettings("training.batch_size", "actor.max_new_tokens")
VALUING = BatchSettings("training.batch_size", "critic.max_length")
LANGUAGE = [name for name in CLASSES if name != "make_offline_data"]


@pytest.fixture
def dry_run(monkeypatch):
    monkeypatch.setattr(process._options, "dry_run", True)


@pytest.mark.parametrize("script", [*LANGUAGE, "search"])
def test_a_dry_run_prints_the_parts_and_makes_nothing(script, weights, tmp_path, capsys, dry_run):
    config = config_of("train_simpo" if script == "search" else script, weights, tmp_path / "run")
    if script == "search":
        config = SearchConfig(language=LanguageConfig(train=config))
    elif script == "run_pipeline":
        config = replace(config, tiny=None)
    assert run_here(script, config) == {}
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("GiB on cpu", "weights", "total", "available"))
    assert not (tmp_path / "run").exists()


def test_what_is_too_much_is_said_with_what_helps(weights, tmp_path, capsys, dry_run, monkeypatch):
    monkeypatch.setattr("lactchain_extras.memory.available_memory", lambda: 1)
    run_here("train_bc", config_of("train_bc", weights, tmp_path / "run"))
    assert "too much: lower training.batch_size or actor.max_new_tokens" in capsys.readouterr().out


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
def test_what_lasts_is_counted_to_the_byte(lora, weights, tmp_path):
    cloning = config_of("train_bc", weights, tmp_path, {"actor.lora": lora})
    config = config_of("train_critic", weights, tmp_path, {"critic.lora": lora})
    model, _ = load_actor(cloning.actor, trainable=True)
    critic = EmbeddingCritic.from_config(config.critic, trainable=True)
    for trained, found in (
        (model, memory_of(cloning, CLONING)), (critic, memory_of(config, VALUING))
    ):  # fmt: skip
        learnt = sum(p.nbytes for p in trained.parameters() if p.requires_grad)
        assert found["weights"] == sum(p.nbytes for p in trained.parameters())
        assert found["moments"] == 2 * found["gradients"] == 2 * learnt > 0
    assert found["logits"] == 0
    frozen = replace(config, critic=replace(config.critic, frozen=True))
    assert "gradients" not in memory_of(frozen, VALUING)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_about_what_autograd_keeps(checkpointing, tmp_path):
    shape = MistralConfig(
        hidden_size=64, intermediate_size=224, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=16, vocab_size=96, sliding_window=None,
    )  # fmt: skip
    shape.save_pretrained(tmp_path)
    config = TrainBCConfig(
        environment=GRID,
        actor=ActorConfig(str(tmp_path), max_new_tokens=200),
        training=TrainingConfig(batch_size=2, gradient_checkpointing=checkpointing),
    )
    ids = torch.ones(2, 220, dtype=torch.long)
    model, kept = MistralForCausalLM(shape).train(), {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    if checkpointing:
        model.activation_checkpointing_enable()

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.shape[-1:] != (shape.vocab_size,):
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, labels=ids, use_cache=False).loss  # noqa: B018  - what it has kept is looked at
    found = memory_of(config, CLONING)["activations"]
    if checkpointing:
        assert sum(kept.values()) < found
    else:
        assert found / 2 < sum(kept.values()) < found


def test_the_config_of_a_model_is_enough(tmp_path):
    SHAPES[ACTOR].save_pretrained(tmp_path)
    config = collect_rollouts.CollectRolloutsConfig(environment=GRID)
    found = {}
    for dtype in ("bfloat16", "8bit", "4bit"):
        actor = replace(config.actor, model=str(tmp_path), dtype=dtype)
        batch = collect_rollouts.BATCHES[0]
        found[dtype] = memory_of(replace(config, actor=actor), batch)["weights"]
    assert found["bfloat16"] == 2 * 7_248_023_552
    assert 7e9 < found["8bit"] < 8e9 and 3.6e9 < found["4bit"] < 4.8e9


def test_models_that_are_elsewhere_take_nothing_until_they_are_trained(weights, tmp_path):
    config = config_of("collect_rollouts", weights, tmp_path)
    served = replace(config.actor, served=ServedConfig(["http://node1:8000"]))
    assert memory_of(config, collect_rollouts.BATCHES[0])["cache"] > 0
    assert memory_of(replace(config, actor=served), collect_rollouts.BATCHES[0]) == {}
    config = config_of("train_bc", weights, tmp_path)
    assert memory_of(replace(config, actor=replace(config.actor, served=served.served)), CLONING)


def test_available_memory_is_a_part_of_this_computers(monkeypatch):
    whole = available_memory()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert 0 < available_memory() < 0.7 * whole


def more_than_there_is(*_):
    torch.empty(2**50)


def more_than_a_gpu_has(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("clone", [more_than_there_is, more_than_a_gpu_has], ids=["cpu", "cuda"])
def test_who_runs_out_of_memory_is_told_what_to_lower(clone, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(train_bc, "clone", clone)
    line = "^Behaviour cloning: no memory is left on cpu; lower training.batch_size or actor.max_"
    with pytest.raises(ConfigError, match=line) as error:
        run_here("train_bc", config_of("train_bc", weights, tmp_path / "run"))
    assert "\n" not in str(error.value) and error.value.exit_code == 2


def test_other_errors_are_left_as_they_are_and_files_are_not_blamed(tmp_path):
    for error in (RuntimeError("shape mismatch"), ValueError("no")):
        assert not is_out_of_memory(error)
        with pytest.raises(type(error)), enough_memory("SimPO", [CLONING]):
            raise error
    with pytest.raises(RuntimeError, match="memory"), readable(tmp_path):
        more_than_there_is()


@pytest.fixture
def critics(monkeypatch):
    """Weak references to the critics that are made; cycles stay until somebody collects them."""
    made, construct = [], HeadedModel.__init__

    def remember(self, *args):
        construct(self, *args)
        made.append(weakref.ref(self))

    monkeypatch.setattr(HeadedModel, "__init__", remember)
    gc.disable()
    yield made
    gc.enable()


def test_exact_values_replace_the_trainer_which_is_gone(critics, weights, tmp_path, monkeypatch):
    def enumerate_alone(*args):
        assert critics and all(critic() is None for critic in critics)
        return exact_policy(*args)

    monkeypatch.setattr(train_critic, "exact_policy", enumerate_alone)
    summary = run_here("train_critic", config_of("train_critic", weights, tmp_path / "run"))
    assert "critic_r2" in summary
    free_memory()
    assert all(critic() is None for critic in critics)
