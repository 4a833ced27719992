"""A dry run prints what each stage takes and makes nothing; what cannot fit is not begun."""

import gc
import importlib
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

from lactchain import budget
from lactchain.budget import check_budget, phases
from lactchain.data import critic_data
from lactchain.data.exact_values import exact_policy
from lactchain.errors import ConfigError
from lactchain.jobs import PlayConfig, TrainILQLConfig, TrainMCConfig
from lactchain.models import specs
from lactchain.models.headed import HeadedModel
from lactchain.settings import ActorConfig, LoraSettings, TrainingConfig

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
def test_a_dry_run_prints_the_parts_and_makes_nothing(script, weights, tmp_path, capsys):
    config = config_of(script, weights, tmp_path / "run", dry_run=True)
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


def test_players_and_values_are_estimated_as_well(weights, tmp_path, large):
    actor = ActorConfig(str(weights / "actor"), max_new_tokens=8, lora=LoraSettings(r=2))
    assert list(phases(PlayConfig(GRID))) == []
    check_budget(PlayConfig(GRID))
    for config in (
        PlayConfig(GRID, actor),
        TrainMCConfig(environment=GRID, actor=actor, trajectories=str(tmp_path / "none")),
        TrainILQLConfig(environment=GRID, actor=actor, trajectories=str(tmp_path / "none")),
    ):
        with pytest.raises(ConfigError, match="GiB are free"):
            check_budget(config)


def test_values_are_estimated_from_the_episodes_that_are_there(weights, tmp_path):
    collected = config_of("collect_rollouts", weights, tmp_path / "episodes")
    run_here("collect_rollouts", collected)
    config = TrainILQLConfig(
        environment=GRID,
        actor=collected.actor,
        trajectories=str(tmp_path / "episodes/trajectories"),
        training=TrainingConfig(batch_size=4),
    )
    (there,) = phases(config)
    (guessed,) = phases(replace(config, trajectories=str(tmp_path / "none")))
    # Several answers to a prompt stand in its row.
    assert there.estimate.activations > guessed.estimate.activations > 0


def test_large_models_that_fit_are_begun(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(specs, "SMALL_MODEL_BYTES", 0)
    check_budget(config_of("train_simpo", weights, tmp_path / "run"))


def test_available_memory_is_a_part_of_this_computers(monkeypatch):
    whole = specs.available_memory()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert 0 < specs.available_memory() < 0.7 * whole


def test_a_search_of_actors_is_a_training_and_its_judgement(weights, tmp_path):
    module = importlib.import_module("search")
    from lactchain.search.settings import LanguageConfig, SearchConfig

    train = config_of("train_simpo", weights, tmp_path / "run")
    config = SearchConfig(language=LanguageConfig(train=train))
    names = [phase.name for stage in module.language_stages(config) for phase in phases(stage)]
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

    monkeypatch.setattr(critic_data, "exact_policy", enumerate_alone)
    summary = run_here("train_critic", config_of("train_critic", weights, tmp_path / "run"))
    assert "critic_r2" in summary


def test_exact_values_that_nobody_computes_take_nothing(weights, tmp_path):
    config = config_of("train_critic", weights, tmp_path / "run")
    assert "exact values" in [phase.name for phase in phases(config)]
    for changes in (
        {"compare_with_exact": False},
        {"actor": replace(config.actor, decoding="free")},
        {"critic": replace(config.critic, mode="action_value")},
    ):
        found = [phase.name for phase in phases(replace(config, **changes))]
        assert "exact values" not in found, changes
