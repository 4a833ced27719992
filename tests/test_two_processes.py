"""Two processes train as one does: FSDP2 and DDP, adapters and all weights, float32 and bf16."""

from functools import partial

import numpy as np
import pytest
from pair_setups import actor_norm, comparable, interrupt, losses, run_on_two
from training_setups import SHAPE, STATES, build_weights, final_state, value_data

from lactchain.models.critic import EmbeddingCritic
from lactchain.models.values import ValueModel
from lactchain.trainers.base import save_result, train
from lactchain_extras.explorer.token_recording import along

FIRST, OTHERS = ["critic", "simpo"], ["cloning", "ilql", "mc"]
KINDS = [*FIRST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


def train_sharded(kinds, weights, folder):
    """What a process finds of each kind of training, as a whole and interrupted."""
    return {
        kind: {
            "losses": losses(kind, weights, folder / kind / "whole", 2, lora=True),
            **interrupt(kind, weights, folder / kind / "stopped", lora=True),
            "actor": actor_norm(weights),
        }
        for kind in kinds
    }


@pytest.fixture(scope="module")
def sharded(weights, tmp_path_factory):
    """What each of two processes found under FSDP2, and where; some trainings to a launch."""
    launches = {}

    def found(kind):
        kinds = FIRST if kind in FIRST else OTHERS
        if kinds[0] not in launches:
            folder = tmp_path_factory.mktemp("sharded")
            ranks = run_on_two(partial(train_sharded, kinds, weights, folder), folder, fsdp=True)
            launches[kinds[0]] = folder, ranks
        folder, ranks = launches[kinds[0]]
        return folder / kind, [rank[kind] for rank in ranks]

    return found


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_has_the_losses_of_one_process(kind, weights, sharded, run_dir):
    _, ranks = sharded(kind)
    alone = losses(kind, weights, run_dir, 4, lora=True)
    assert ranks[0]["losses"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_stopped_within_an_update_resumes_bit_exact(kind, sharded):
    folder, ranks = sharded(kind)
    assert all("stopped at step 5 of 10" in rank["stop"] for rank in ranks)
    assert final_state(folder / "stopped", 10) == final_state(folder / "whole", 10)


def train_all_weights(weights, folder):
    for kind in FIRST + OTHERS:
        losses(kind, weights, folder / kind / "whole", 2, lora=False)
        interrupt(kind, weights, folder / kind / "stopped", lora=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fsdp2_resumes_a_training_of_all_weights_bit_exact(weights, tmp_path):
    run_on_two(partial(train_all_weights, weights, tmp_path), tmp_path, fsdp=True)
    for kind in FIRST + OTHERS:
        states = [final_state(tmp_path / kind / name, 10) for name in ("whole", "stopped")]
        assert states[0] == states[1], kind


@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_shards_layer_by_layer(kind, sharded):
    _, ranks = sharded(kind)
    assert ranks[0]["units"].count("FSDPMistralDecoderLayer") == SHAPE.num_layers


@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_saves_what_is_trained_and_nothing_else(kind, sharded):
    folder, _ = sharded(kind)
    for checkpoint in (folder / "whole" / "checkpoints").glob("checkpoint-*"):
        files = {path.name for path in checkpoint.iterdir()}
        assert "adapter_model.safetensors" in files
        assert not any("model" in name for name in files - {"adapter_model.safetensors"})


def test_values_of_a_sharded_critic_are_equal_on_all_ranks_and_after_loading(sharded):
    folder, ranks = sharded("critic")
    assert len(set(ranks[0]["values"])) > 1
    assert ranks[0]["values"] == ranks[1]["values"]
    loaded = EmbeddingCritic.load(folder / "result").values(STATES)
    np.testing.assert_allclose(loaded, ranks[0]["values"], rtol=1e-5)


def token_values(kind, weights, folder, lora):
    """What the tokens are worth to a model that is sharded, after a training."""
    with comparable(kind, weights, folder / "run", 2, lora=lora) as trainer:
        train(trainer)
    save_result(trainer, folder / "result")
    return [*along(trainer.values, value_data(weights, lora)[1])]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("kind", "lora"), [("ilql", True), ("mc", False)])
def test_token_values_of_a_sharded_model_are_those_of_the_saved_one(kind, lora, weights, tmp_path):
    ranks = run_on_two(partial(token_values, kind, weights, tmp_path, lora), tmp_path, fsdp=True)
    assert ranks[0] == ranks[1]
    model, (_, view) = ValueModel.load(tmp_path / "result"), value_data(weights, lora)
    for (q, v), (q_sharded, v_sharded) in zip(along(model, view), ranks[0], strict=True):
        assert q_sharded == pytest.approx(q, rel=1e-4)
        assert v_sharded == pytest.approx(v, rel=1e-4)


def test_models_that_are_not_trained_are_whole_on_all_ranks(sharded):
    """Although the launch asks for one process that reads weights: actors collect episodes, too."""
    _, ranks = sharded("critic")
    assert ranks[0]["actor"] == ranks[1]["actor"] > 0


@pytest.mark.parametrize(
    "kind", ["simpo", *(pytest.param(k, marks=pytest.mark.slow) for k in ("ilql", "mc", "cloning"))]
)
def test_how_rows_are_split_into_micro_batches_makes_no_difference(kind, weights, tmp_path):
    """Completions have one to three actions: a mean of means over their tokens would weigh them."""
    whole, split = (
        losses(kind, weights, tmp_path / str(size), size, accumulation=8 // size, lora=True)
        for size in (8, 2)
    )
    assert split == pytest.approx(whole, rel=1e-5)


def train_all(weights, folder, batch_size, **options):
    return {
        kind: losses(kind, weights, folder / kind, batch_size, **options) for kind in FIRST + OTHERS
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lora", [True, False], ids=["adapter", "all weights"])
@pytest.mark.parametrize("fsdp", [True, False], ids=["fsdp2", "ddp"])
@pytest.mark.parametrize(("dtype", "rel"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_ten_updates_on_two_processes_have_the_losses_of_one(
    dtype, rel, fsdp, lora, weights, tmp_path
):
    compare(weights, tmp_path, rel, {"lora": lora, "dtype": dtype}, fsdp=fsdp)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [{"lora": True, "dtype": "bfloat16"}, {"lora": False}])
def test_fsdp2_in_mixed_precision_has_the_losses_of_one_process(options, weights, tmp_path):
    compare(weights, tmp_path, 0.01, options, fsdp=True, mixed_precision="bf16")


def compare(weights, folder, rel, options, **launch):
    alone = train_all(weights, folder / "one", 4, **options)
    work = partial(train_all, weights, folder / "two", 2, **options)
    together, _ = run_on_two(work, folder, **launch)
    for kind in alone:
        assert together[kind] == pytest.approx(alone[kind], rel=rel), kind
