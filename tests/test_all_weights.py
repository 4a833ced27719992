"""Training in 16 and in 32 bits: what is chosen, what is saved, and what was learnt answers."""

from dataclasses import replace

import family_models
import numpy as np
import pytest
import torch
from script_setups import LORA, config_of, start
from training_setups import exit_codes, nudge

from lactchain import ChainGrammar, ConfigError, EmbeddingCritic, LanguageActor
from lactchain.config.settings import ActorConfig, CriticConfig, LoraSettings
from lactchain.models import loading
from lactchain.models.adapters import save_adapter
from lactchain.models.loading import load_actor
from lactchain.storage.manifests import verify_manifest
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.weights.merging import export_actor

STATES = ["1 1 up 0 0", "0 1 left 0 0", "0 0 down 1 1"]
GRAMMAR = ChainGrammar(("move forward", "turn left"), 3)
ADAPTER = LoraSettings(r=2, alpha=4)
TEXTS = ["1 2 up", "0 3 left"]


@pytest.fixture(scope="module")
def actor16(weights, tmp_path_factory) -> str:
    """The tiny actor as the hub has models: in bfloat16."""
    folder = str(tmp_path_factory.mktemp("actor16"))
    for part in load_actor(ActorConfig(str(weights / "actor"), dtype="bfloat16")):
        part.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("capabilities", "chosen"), [
    ({"avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
    ({"avx512_bf16": False, "amx_bf16": True}, torch.bfloat16),
    ({"avx512_bf16": False, "amx_bf16": False}, torch.float32),
    ({}, torch.float32),
])  # fmt: skip
def test_auto_is_bfloat16_on_a_cpu_that_computes_in_it(actor16, monkeypatch, capabilities, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert load_actor(ActorConfig(actor16))[0].dtype == chosen


def test_auto_is_float32_for_weights_that_are_all_trained(actor16, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "computes_in_bfloat16", lambda: True)  # as on a GPU
    actor = ActorConfig(actor16)
    assert load_actor(actor)[0].dtype == torch.bfloat16
    adapted = load_actor(replace(actor, lora=LORA), trainable=True)[0]
    assert adapted.get_base_model().dtype == torch.bfloat16
    model, tokenizer = load_actor(actor, trainable=True)
    assert model.dtype == torch.float32
    # What has been learnt answers as it was learnt.
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "trained")
    assert load_actor(ActorConfig(str(tmp_path / "trained")))[0].dtype == torch.float32
    config = CriticConfig(actor16)
    assert EmbeddingCritic.from_config(config).base.dtype == torch.bfloat16
    critic = EmbeddingCritic.from_config(config, trainable=True)
    assert critic.base.dtype == torch.float32
    critic.save(tmp_path / "critic")
    assert EmbeddingCritic.load(tmp_path / "critic").base.dtype == torch.float32
    again = replace(config, checkpoint=str(tmp_path / "critic"))
    assert EmbeddingCritic.from_config(again, trainable=True).base.dtype == torch.float32


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
def test_bfloat16_is_warned_of_where_all_weights_are_trained(lora, weights, caplog):
    config = ActorConfig(str(weights / "actor"), dtype="bfloat16", lora=lora)
    load_actor(config, trainable=True)
    warned = "rounds most of their updates away" in caplog.text
    assert warned == (lora is None)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_without_an_adapter_are_not_trained(bits, weights):
    quantised = {"dtype": f"{bits}bit"}
    message = rf"lora: expected an adapter to train on .* in {bits} bits"
    with pytest.raises(ConfigError, match=message):
        load_actor(ActorConfig(str(weights / "actor"), **quantised), trainable=True)
    with pytest.raises(ConfigError, match=message):
        critic = CriticConfig(str(weights / "encoder"), **quantised)
        EmbeddingCritic.from_config(critic, trainable=True)


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys did not match:RuntimeWarning")
@pytest.mark.parametrize("name", ["Mixtral", "Qwen 3 MoE"])
def test_experts_are_trained_by_what_can_be_saved_and_merged(name, tmp_path):
    family = next(f for f in family_models.FAMILIES if f.name == name)
    tokenizer = family_models.build_tokenizer(family)
    family_models.build_model(family, len(tokenizer)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    config = ActorConfig(str(tmp_path / "base"), dtype="float32")
    with pytest.raises(ConfigError, match="lora: expected an adapter .* experts"):
        load_actor(config, trainable=True)
    model, _ = load_actor(replace(config, lora=LORA), trainable=True)
    nudge(model, 0.02)
    save_adapter(model, tmp_path / "adapter")
    config = replace(config, adapter=str(tmp_path / "adapter"))
    export_actor(config, tmp_path / "export", "float32")
    exported = replace(config, model=str(tmp_path / "export"), adapter=None)
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        models = (load_actor(c)[0] for c in (config, exported, replace(config, adapter=None)))
        trained, alone, plain = (model(input_ids=ids).logits.log_softmax(-1) for model in models)
    torch.testing.assert_close(alone, trained, atol=1e-5, rtol=1e-5)
    assert (trained - plain).abs().max() > 1e-3


def test_a_target_network_in_float32_follows_weights_of_16_bits(weights):
    """600 steps of tau 0.005 are 95 % of the way; in bfloat16 most of it was never gone."""
    torch.manual_seed(0)
    config = ActorConfig(str(weights / "actor"), dtype="bfloat16")
    model = ValueModel.from_actor(config, method="ilql", gamma=0.9, num_q_heads=2)
    model.start_target()
    name = next(name for name in model.target if "q_proj" in name)
    online, start = model.get_parameter(name), model.target[name].clone()
    with torch.no_grad():
        online.add_(0.1 * online.float().std() * torch.randn_like(online))
    way = online.detach().float() - start
    ids = torch.arange(3, 9)[None]
    trees = {"input_ids": ids, "position_ids": ids - 3, "subtree_ends": torch.full_like(ids, 6)}
    for _ in range(600):
        model.update_target(0.005)
    gone = model.target[name] - start
    before = {n: t.clone() for n, t in model.target.items()}
    expected = model.target_network()(trees, torch.tensor([2, 5]))["q"].amin(0)
    assert torch.equal(model.target_q(trees, torch.tensor([2, 5])), expected)
    assert all(torch.equal(model.target[n], tensor) for n, tensor in before.items())
    assert torch.equal(online.float() - start, way)
    assert float((gone * way).sum() / way.square().sum()) == pytest.approx(1 - 0.995**600, abs=1e-3)


@pytest.fixture(params=["float32", "bfloat16"])
def actor(request, small, tmp_path) -> ActorConfig:
    """An actor whose adapter has learnt a little; less than a bit of most of its weights."""
    config = ActorConfig(model=str(small / "actor"), dtype=request.param)
    torch.manual_seed(0)
    model, _ = load_actor(replace(config, lora=ADAPTER), trainable=True)
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
    ids = torch.randint(5, 280, (20, 51), generator=torch.manual_seed(2))
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
        prompts = policy.template.encode_batch(TEXTS)
        found = []
        for prompt, action in zip(prompts, policy.act(TEXTS, [3, 4]), strict=True):
            ids = torch.tensor([[*prompt, *action.token_ids]])
            expected = logprobs(plain, ids)[-len(action.token_ids) :]
            found.append(np.abs(expected - np.array(action.logprobs)))
        errors.append(np.concatenate(found).max())
    noise, error = errors
    assert error <= (2 * noise if actor.dtype == "bfloat16" else 1e-5)


def test_an_update_smaller_than_a_number_of_16_bits_is_still_an_adapter(small, tmp_path):
    config = ActorConfig(model=str(small / "actor"), dtype="bfloat16")
    model, _ = load_actor(replace(config, lora=ADAPTER), trainable=True)
    nudge(model, 1e-6)
    save_adapter(model, tmp_path)
    load_actor(replace(config, adapter=str(tmp_path)))  # not refused as doing nothing


def test_the_recipe_runs_with_adapters_on_both_models(tmp_path):
    """As on a GPU: weights in bfloat16, trained in mixed precision, and rolled out in between."""
    changes = {"critic.collect.num_episodes": 16, "simpo.preferences.num_states": 24}
    for model in ("actor", "critic.config"):
        changes |= {f"{model}.lora": LORA, f"{model}.dtype": "bfloat16"}
    changes["evaluation.num_samples"] = 16
    config = config_of("run_pipeline", tmp_path, tmp_path / "run", changes)
    process = start("run_pipeline", config, ACCELERATE_MIXED_PRECISION="bf16")
    assert exit_codes([process]) == [0], (tmp_path / "run-0.log").read_text()[-2000:]
    for result in ("round_2/critic/critic", "round_2/simpo/actor"):
        files = verify_manifest(tmp_path / "run" / result)["files"]
        assert {"adapter_model.safetensors"} == {n for n in files if n.endswith(".safetensors")}
