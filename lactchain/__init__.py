"""LactChain: reinforcement learning of language models that answer with chains of actions.

Importing it registers the Gymnasium ids. Each public name is loaded from its module when it is
first asked for, so that the import costs no torch.
"""

from lactchain.runs import signals as _signals

if _signals.is_command():  # first, as what follows takes some tenths of a second
    _signals.end_at_once()

from importlib import import_module
from typing import Any

from lactchain import worlds as worlds

_MODULES = {
    "types": "Action ChainGrammar Critic FunctionPolicy Policy PreferencePair Reward Trajectory",
    "errors": "ConfigError DataError DiskError EnvironmentFault Interrupted LactChainError "
    "NonFiniteError",
    "config.parsing": "dump parse",
    "config.settings": "ActorConfig CollectConfig CriticConfig EnvironmentConfig GuidedActorConfig "
    "HeldBackConfig LoraSettings PlayerConfig PreferenceConfig RunConfig SamplerConfig SimPOConfig "
    "TrainingConfig",
    "runs.run": "Run",
    "runs.process": "launch",
    "environments.language": "LanguageEnv language_env make_language_env",
    "environments.views": "TextView",
    "environments.extractors": "Chain Rejection make_extractor",
    "environments.scripted": "Mixture OptimalChains RandomChains",
    "baselines.member_envs": "make_vector_env",
    "worlds.gridworld": "GridWorld",
    "models.actor": "LanguageActor",
    "models.critic": "EmbeddingCritic",
    "data.episodes": "Episode Region",
    "data.rollouts": "Rollouts collect evaluate",
    "data.sources": "read_trajectories write_trajectories",
    "data.preferences": "chain_advantages make_pairs read_pairs write_pairs",
    "stages.train_agent": "train_agent",
    "inspection.run_view": "load_agent load_critic load_policy load_values open_run",
    "stages.make_preferences": "make_preferences",
    "trainers.critic": "CriticTrainer",
    "trainers.simpo": "SimPOTrainer",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
