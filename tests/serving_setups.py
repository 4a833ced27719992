"""Actors, adapters and pipelines behind the engine of the tests."""

from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import torch
from script_setups import GRID, LORA, config_of
from test_rollouts import heard
from training_setups import nudge

from lactchain.config.settings import ActorConfig, LoraSettings, SamplerConfig, ServedConfig
from lactchain.environments.language import make_language_env
from lactchain.models.adapters import save_adapter
from lactchain.models.loading import load_actor
from lactchain_extras.serving.transport import Transport

GRAMMAR = make_language_env(GRID).grammar
STATE = "0 0 up 1 1"


def adapter_weights(folder):
    return (folder / "adapter_model.safetensors").read_bytes()


def draw_adapters(weights, folder):
    """Two adapters of rank 2 and one of rank 4, with weights drawn at random."""
    folders = []
    for number, rank in enumerate((2, 2, 4)):
        config = ActorConfig(str(weights / "actor"), lora=LoraSettings(r=rank))
        with torch.random.fork_rng():
            torch.manual_seed(number)
            model, _ = load_actor(config, trainable=True)
            nudge(model, 0.5, seed=number)
        folders.append(folder / str(number))
        save_adapter(model, folders[-1])
    return folders


@contextmanager
def asking(*servers, timeout_seconds=5.0, **more):
    urls = [server.url for server in servers]
    with closing(Transport(urls, timeout_seconds=timeout_seconds, **more)) as transport:
        yield transport


def ask(server, **more):
    with asking(server, **more) as transport:
        return transport.post("/v1/completions", {}, lambda body: body).result()


def asked_of(engine, *more, decoding="free", **changes):
    """The configuration of an actor behind an engine, and others."""
    served = ServedConfig([engine.url, *(e.url for e in more)], timeout_seconds=10.0)
    config = SamplerConfig(str(engine.model), max_new_tokens=8, decoding=decoding, served=served)
    return replace(config, **changes)


def same(ours, theirs):
    """Whether episodes are the same, but for the names of who played, and the last bits."""
    bare = [[replace(t, policy="") for t in heard(played)] for played in (ours, theirs)]
    assert bare[0] == bare[1]
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one.actions, other.actions, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


def pipeline(engine, weights, run_dir):
    """Two rounds of an adapter, behind an engine or with a local actor."""
    values = {
        "actor.lora": LORA,
        "actor.served": None if engine is None else ServedConfig([engine.url]),
        "critic.collect.num_episodes": 32,
        "simpo.preferences.num_states": 32,
        "simpo.training.learning_rate": 0.01,
        "simpo.training.extra": {"lr_scheduler_type": "constant", "warmup_steps": 0},
        "evaluation.num_samples": 16,
    }
    return config_of("run_pipeline", weights, run_dir, values, tiny=None, warm_start=None)
