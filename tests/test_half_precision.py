"""What `auto` means on CUDA, rehearsed here: models in bfloat16 with LoRA in float32."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from script_setups import COLLECT, config_of, start
from test_tiny_models import SMALL, corpus
from training_setups import exit_codes

from lactchain.config.settings import ActorConfig, CriticConfig, LoraSettings
from lactchain.models.actor import LanguageActor
from lactchain.models.adapters import save_adapter
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import load_actor
from lactchain.models.tiny import build_tiny_actor, build_tiny_encoder
from lactchain.storage.manifests import verify_manifest
from lactchain.types import ChainGrammar

GRAMMAR = ChainGrammar(("move forward", "turn left"), 3)
LORA = LoraSettings(r=2, alpha=4)
STATES = ["1 2 up", "0 3 left"]
NUM_TOKENS = 1000


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    build_tiny_actor(folder / "actor", corpus(), SMALL)
    build_tiny_encoder(folder / "encoder", folder / "actor")
    return folder


def nudge(model: torch.nn.Module, size: float) -> None:
    """Gives an adapter an update of a size that a short training has."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, size)


@pytest.fixture(params=["float32", "bfloat16"])
def actor(request, weights, tmp_path) -> ActorConfig:
    """An actor whose adapter has learnt a little; less than a bit of most of its weights."""
    config = ActorConfig(model=str(weights / "actor"), dtype=request.param)
    torch.manual_seed(0)
    model, _ = load_actor(replace(config, lora=LORA), trainable=True)
    nudge(model, 5e-4)
    save_adapter(model, tmp_path / "adapter")
    return replace(config, adapter=str(tmp_path / "adapter"))


def logprobs(model: torch.nn.Module, ids: torch.Tensor) -> np.ndarray:
    with torch.inference_mode():
        scores = model(ids).logits[:, :-1].float().log_softmax(-1)
    return scores.gather(-1, ids[:, 1:, None]).double().numpy().ravel()


def test_what_answers_is_what_was_trained(actor):
    """The shift of the acting model on that of the trained one has slope 1.

    Merged into 16 bits, hardly any of this update would be left.
    """
    ids = torch.randint(5, 280, (NUM_TOKENS // 50, 51), generator=torch.manual_seed(2))
    base, _ = load_actor(replace(actor, adapter=None))
    trained, _ = load_actor(actor)
    acting = LanguageActor.from_config(actor, GRAMMAR).decoder.model
    before, learnt = logprobs(base, ids), logprobs(trained, ids)
    shift = learnt - before
    assert np.abs(shift).max() > 1e-3
    slope = shift @ (logprobs(acting, ids) - before) / (shift @ shift)
    assert slope == pytest.approx(1, abs=0.05)
    if actor.dtype == "float32":
        np.testing.assert_allclose(logprobs(acting, ids), learnt, atol=1e-5)


def test_the_decoder_is_no_further_from_the_trained_model_than_from_the_base(actor):
    """Rounding alone tells the cascade's log-probabilities from those of a plain forward pass."""
    errors = []
    for config in (replace(actor, adapter=None), actor):
        policy = LanguageActor.from_config(config, GRAMMAR)
        plain, _ = load_actor(config)
        prompts = policy.template.encode_batch(STATES)
        found = []
        for prompt, action in zip(prompts, policy.act(STATES, [3, 4]), strict=True):
            ids = torch.tensor([[*prompt, *action.token_ids]])
            expected = logprobs(plain, ids)[-len(action.token_ids) :]
            found.append(np.abs(expected - np.array(action.logprobs)))
        errors.append(np.concatenate(found).max())
    noise, error = errors
    assert error <= (2 * noise if actor.dtype == "bfloat16" else 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_critic_with_an_adapter_is_what_was_saved(weights, tmp_path, dtype):
    config = CriticConfig(model=str(weights / "encoder"), lora=LORA, dtype=dtype)
    torch.manual_seed(0)
    critic = EmbeddingCritic.from_config(config, trainable=True)
    nudge(critic.trunk, 0.1)
    torch.nn.init.normal_(critic.trunk.get_base_model().score.modules_to_save.default.weight)
    critic.save(tmp_path)
    again = EmbeddingCritic.from_config(replace(config, checkpoint=str(tmp_path)))
    np.testing.assert_array_equal(again.values(STATES), critic.values(STATES))
    assert again.values(STATES).any()


def test_an_update_smaller_than_a_number_of_16_bits_is_still_an_adapter(weights, tmp_path):
    config = ActorConfig(model=str(weights / "actor"), dtype="bfloat16")
    model, _ = load_actor(replace(config, lora=LORA), trainable=True)
    nudge(model, 1e-6)
    save_adapter(model, tmp_path)
    load_actor(replace(config, adapter=str(tmp_path)))  # not refused as doing nothing


def test_the_recipe_runs_with_adapters_on_both_models(tmp_path):
    """As on a GPU: weights in bfloat16, trained in mixed precision, and rolled out in between."""
    config = config_of("run_pipeline", tmp_path, tmp_path / "run")
    critic = replace(config.critic.config, lora=LORA, dtype="bfloat16")
    config = replace(
        config,
        actor=replace(config.actor, lora=LORA, dtype="bfloat16"),
        critic=replace(config.critic, config=critic, collect=replace(COLLECT, num_episodes=32)),
    )
    process = start("run_pipeline", config, ACCELERATE_MIXED_PRECISION="bf16")
    assert exit_codes([process]) == [0], (tmp_path / "run-0.log").read_text()[-2000:]
    for result in ("round_2/critic/critic", "round_2/simpo/actor"):
        files = verify_manifest(tmp_path / "run" / result)["files"]
        assert {"adapter_model.safetensors"} == {n for n in files if n.endswith(".safetensors")}
