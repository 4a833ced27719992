"""A dry run prints what each stage takes and makes nothing; what cannot fit is not begun."""

import gc
import weakref
from dataclasses import replace

import pytest
from script_setups import (
    CLASSES,
    GRID,
    STAGES,
    build_weights,
    config_of,
    run_here,
)

from lactchain import budget, process
from lactchain.budget import check_budget
from lactchain.data.exact_values import exact_policy
from lactchain.errors import ConfigError
from lactchain.models import specs
from lactchain.models.headed import HeadedModel
from lactchain.progress import under_way
from lactchain.settings import ActorConfig, LoraSettings, TrainingConfig
from lactchain.stages import play, search, train_critic, train_ilql, train_mc, train_simpo
from lactchain.stages.play import PlayConfig
from lactchain.stages.search import LanguageConfig, SearchConfig
from lactchain.stages.train_ilql import TrainILQLConfig
from lactchain.stages.train_mc import TrainMCConfig

LANGUAGE = [name for name in CLASSES if name != "make_offline_data"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def large(monkeypatch):
    """Tiny models count as large ones, on a device with hardly any memory."""
    monkeypatch.setattr(specs, "SMALL_MODEL_BYTES", 0)
    monkeypatch.setattr(budget, "available_memory", lambda: 1 << 20)


@pytest.mark.parametrize("script", LANGUAGE)
def test_a_dry_run_prints_the_parts_and_makes_nothing(
    script, weights, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(process, "_dry_run", True)
    config = config_of(script, weights, tmp_path / "run")
    if script == "run_pipeline":
        config = replace(config, tiny=None, warm_start=None)
        model = str(weights / "encoder")
        stage = replace(config.critic, config=replace(config.critic.config, model=model))
        config = replace(config, critic=stage)
    assert run_here(script, config) == {}
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("GiB", "weights", "total", "available"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("script", [s for s in STAGES if s in LANGUAGE])
def test_what_cannot_fit_is_refused_before_it_is_loaded(script, weights, tmp_path, large):
    config = config_of(script, weights, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"takes about .* GiB on cpu, 0.00 GiB are free; ") as got:
        run_here(script, config)
    assert "lower " in str(got.value) and "\n" not in str(got.value)
    assert not any((tmp_path / "run").glob("*.parquet")) and got.value.exit_code == 2


def test_a_part_of_another_stage_is_not_estimated_again(weights, tmp_path, large):
    with under_way("a pipeline, estimated as a whole"):
        assert run_here("evaluate", config_of("evaluate", weights, tmp_path / "run"))


def test_players_and_values_are_estimated_as_well(weights, tmp_path, large):
    actor = ActorConfig(str(weights / "actor"), max_new_tokens=8, lora=LoraSettings(r=2))
    assert list(play.memory(PlayConfig(GRID))) == []
    check_budget(PlayConfig(GRID), play.memory)
    data = {"environment": GRID, "actor": actor, "trajectories": str(tmp_path / "none")}
    for config, memory in (
        (PlayConfig(GRID, actor), play.memory),
        (TrainMCConfig(**data), train_mc.memory),
        (TrainILQLConfig(**data), train_ilql.memory),
    ):
        with pytest.raises(ConfigError, match="GiB are free"):
            check_budget(config, memory)


def test_values_are_estimated_from_the_episodes_that_are_there(weights, tmp_path):
    collected = config_of("collect_rollouts", weights, tmp_path / "episodes")
    run_here("collect_rollouts", collected)
    config = TrainILQLConfig(
        environment=GRID,
        actor=collected.actor,
        trajectories=str(tmp_path / "episodes/trajectories"),
        training=TrainingConfig(batch_size=4),
    )
    (there,) = train_ilql.memory(config)
    (guessed,) = train_ilql.memory(replace(config, trajectories=str(tmp_path / "none")))
    # Several completions to a prompt stand in its row.
    assert there.estimate.activations > guessed.estimate.activations > 0


def test_large_models_that_fit_are_begun(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(specs, "SMALL_MODEL_BYTES", 0)
    check_budget(config_of("train_simpo", weights, tmp_path / "run"), train_simpo.memory)


def test_available_memory_is_a_part_of_this_computers(monkeypatch):
    whole = specs.available_memory()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert 0 < specs.available_memory() < 0.7 * whole


def test_a_search_of_actors_is_a_training_and_its_judgement(weights, tmp_path):
    train = config_of("train_simpo", weights, tmp_path / "run")
    config = SearchConfig(language=LanguageConfig(train=train))
    names = [phase.name for phase in search.memory(config)]
    assert names == ["candidates", "SimPO", "evaluation"]


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


def test_what_a_stage_has_trained_is_let_go_of_before_memory_is_asked_for(
    critics, weights, tmp_path
):
    run_here("train_critic", config_of("train_critic", weights, tmp_path / "run"))
    specs.available_memory()
    assert critics and all(critic() is None for critic in critics)


def test_exact_values_take_the_place_of_the_trainer(critics, weights, tmp_path, monkeypatch):
    def enumerate_alone(*args):
        assert critics and all(critic() is None for critic in critics)
        return exact_policy(*args)

    monkeypatch.setattr(train_critic, "exact_policy", enumerate_alone)
    summary = run_here("train_critic", config_of("train_critic", weights, tmp_path / "run"))
    assert "critic_r2" in summary


def test_exact_values_that_nobody_computes_take_nothing(weights, tmp_path):
    config = config_of("train_critic", weights, tmp_path / "run")
    assert "exact values" in [phase.name for phase in train_critic.memory(config)]
    for changes in (
        {"compare_with_exact": False},
        {"actor": replace(config.actor, decoding="free")},
        {"critic": replace(config.critic, mode="action_value")},
    ):
        found = [phase.name for phase in train_critic.memory(replace(config, **changes))]
        assert "exact values" not in found, changes
