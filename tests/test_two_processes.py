"""Two processes train as one does: FSDP2 and DDP, adapters and all weights, float32 and bf16."""

from functools import cache, partial

import numpy as np
import pytest
from pair_setups import actor_norm, interrupt, losses, run_on_two
from training_setups import SHAPE, STATES, final_state, slow

from lactchain import ConfigError, EmbeddingCritic

FIRST, OTHERS = ("critic", "simpo"), ("cloning",)
OFFLINE = ("ilql", "mc")  # not under FSDP2
KINDS = [*FIRST, *slow(*OTHERS)]


def train_sharded(kinds, tiny, folder):
    """What a process finds of each kind of training, as a whole and interrupted."""
    return {
        kind: {
            "losses": losses(kind, tiny, folder / kind / "whole", 2, lora=True),
            **interrupt(kind, tiny, folder / kind / "stopped", lora=True),
            "actor": actor_norm(tiny),
        }
        for kind in kinds
    }


@pytest.fixture(scope="module")
def sharded(tiny, tmp_path_factory):
    """What each of two processes found under FSDP2, and where; some trainings to a launch."""

    @cache
    def launched(kinds):
        folder = tmp_path_factory.mktemp("sharded")
        return folder, run_on_two(partial(train_sharded, kinds, tiny, folder), folder, fsdp=True)

    def found(kind):
        folder, ranks = launched(FIRST if kind in FIRST else OTHERS)
        return folder / kind, [rank[kind] for rank in ranks]

    return found


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_has_the_losses_of_one_process(kind, tiny, sharded, run_dir):
    _, ranks = sharded(kind)
    alone = losses(kind, tiny, run_dir, 4, lora=True)
    assert ranks[0]["losses"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_stopped_within_an_update_resumes_bit_exact(kind, sharded):
    folder, ranks = sharded(kind)
    assert all("stopped at step 7 of 10" in rank["stop"] for rank in ranks)
    assert final_state(folder / "stopped", 10) == final_state(folder / "whole", 10)


def train_all_weights(tiny, folder):
    for kind in FIRST + OTHERS:
        losses(kind, tiny, folder / kind / "whole", 2, lora=False)
        interrupt(kind, tiny, folder / kind / "stopped", lora=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fsdp2_resumes_a_training_of_all_weights_bit_exact(tiny, tmp_path):
    run_on_two(partial(train_all_weights, tiny, tmp_path), tmp_path, fsdp=True)
    for kind in FIRST + OTHERS:
        states = [final_state(tmp_path / kind / name, 10) for name in ("whole", "stopped")]
        assert states[0] == states[1], kind


@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_shards_layer_by_layer_and_saves_what_is_trained_and_nothing_else(kind, sharded):
    folder, ranks = sharded(kind)
    assert ranks[0]["units"].count("FSDPMistralDecoderLayer") == SHAPE.num_layers
    for checkpoint in (folder / "whole" / "checkpoints").glob("checkpoint-*"):
        files = {path.name for path in checkpoint.iterdir()}
        assert {name for name in files if "model" in name} == {"adapter_model.safetensors"}


def test_a_sharded_critic_has_equal_values_on_all_ranks_and_after_loading(sharded):
    folder, (first, second) = sharded("critic")
    assert len(set(first["values"])) > 1 and first["values"] == second["values"]
    loaded = EmbeddingCritic.load(folder / "result").values(STATES)
    np.testing.assert_allclose(loaded, first["values"], rtol=1e-5)
    # Although the launch asks for one process that reads weights, models that are not trained
    # are whole on all ranks: actors collect episodes, too.
    assert first["actor"] == second["actor"] > 0


def refused(tiny, folder):
    with pytest.raises(ConfigError, match="expected whole weights in each process, got FSDP"):
        losses("ilql", tiny, folder / "run", 2, lora=True)


@pytest.mark.slow
def test_values_of_tokens_are_not_spread(tiny, tmp_path):
    run_on_two(partial(refused, tiny, tmp_path), tmp_path, fsdp=True)


@pytest.mark.parametrize("kind", [*FIRST, *slow("ilql", "mc", "cloning")])
def test_how_rows_are_split_into_micro_batches_makes_no_difference(kind, tiny, tmp_path):
    """Completions have one to three actions: a mean of means over their tokens would weigh them."""
    whole, split = (
        losses(kind, tiny, tmp_path / str(size), size, accumulation=8 // size, lora=True)
        for size in (8, 2)
    )
    assert split == pytest.approx(whole, rel=1e-5)


def train_all(kinds, tiny, folder, batch_size, **options):
    return {kind: losses(kind, tiny, folder / kind, batch_size, **options) for kind in kinds}


MIXED = {"fsdp": True, "mixed_precision": "bf16"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("options", "rel", "launch"), [
    *(
        ({"lora": lora, "dtype": dtype}, rel, {"fsdp": fsdp})
        for dtype, rel in (("float32", 1e-5), ("bfloat16", 0.01))
        for fsdp in (True, False)
        for lora in (True, False)
    ),
    ({"lora": True, "dtype": "bfloat16"}, 0.01, MIXED),
    ({"lora": False}, 0.01, MIXED),
])  # fmt: skip
def test_ten_updates_on_two_processes_have_the_losses_of_one(options, rel, launch, tiny, tmp_path):
    kinds = FIRST + OTHERS + (() if launch["fsdp"] else OFFLINE)
    alone = train_all(kinds, tiny, tmp_path / "one", 4, **options)
    work = partial(train_all, kinds, tiny, tmp_path / "two", 2, **options)
    together, _ = run_on_two(work, tmp_path, **launch)
    for kind in alone:
        assert together[kind] == pytest.approx(alone[kind], rel=rel), kind
