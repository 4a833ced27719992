"""Settings of older versions: what became of each, for files that still name them."""

from collections.abc import Iterable

from lactchain.errors import ConfigError

EXTRA = "is now one of training.extra, by the same name"
ENDED = "is no setting any more"

RENAMED = {
    "dry_run": "is no part of a configuration; add --dry_run to the command",
    "trust_remote_code": "is now the environment variable LACTCHAIN_TRUST_REMOTE_CODE=1",
    "load_in_4bit": "is now dtype: 4bit",
    "load_in_8bit": "is now dtype: 8bit",
    "actor.value_ranking": "is now actor.ranking.by",
    "actor.policy_weight": "is now actor.ranking.policy_weight",
    "actor.policy_floor": "is now actor.ranking.policy_floor",
    "actor.values": "is a setting of evaluate and play alone",
    "actor.value_weight": "is a setting of evaluate and play alone",
    "actor.num_candidates": "is a setting of evaluate and play alone",
    "actor.temperature": f"{ENDED} here: the critic's episodes are played at 1",
    "lora.dropout": ENDED,
    "actor.lora": "is a setting of trainings of the actor alone",
    "training.weight_decay": EXTRA,
    "training.max_grad_norm": EXTRA,
    "training.optim": EXTRA,
    "training.lr_scheduler_type": EXTRA,
    "training.warmup_ratio": "is now training.extra.warmup_steps, a share below 1",
    "warm_start.training.max_steps": f"{ENDED}: num_epochs says how long, and may be a fraction",
    "training.keep_checkpoints": f"{ENDED}: two are kept",
    "regression.loss": f"{ENDED}: it is mse",
    "regression.aggregate_duplicates": f"{ENDED}: equal rows become one",
    "regression.eval_fraction": f"{ENDED}: a tenth of the episodes is held out",
    "regression": f"{ENDED}: returns are Monte-Carlo, and cut episodes end with the critic's value",
    "training.log_every_updates": "is now training.extra.logging_steps",
    "preferences.gamma": f"{ENDED}: it is the critic's, and .99 an action without one",
    "preferences.discount_per": f"{ENDED}: it is the critic's, and an action without one",
    "preferences.share_after_answer": "is now preferences.share_after_completion",
    "only_final_answers": "is now only_final_completions",
    "space.genes": "is now space.tunables",
    "mutation.gene_step": "is now evolution.mutation.tunable_step",
    "mutation.num_genes": "is now evolution.mutation.num_tunables",
    "initial_log_std": f"{ENDED}: it is 0",
    "num_critics": f"{ENDED}: there is one",
    "target_return": f"{ENDED}; a file `stop` in the run folder ends a run early",
    "num_rollouts": f"{ENDED}: the report holds every episode",
    "tiny.max_position_embeddings": f"{ENDED}: it is 2048",
}
"""By a part of the key."""


def renamed(key: str) -> str | None:
    """What became of a key; None if there was none of that name."""
    return next((word for name, word in RENAMED.items() if f".{name}." in f".{key}."), None)


def refuse_renamed(path: object, unknown: Iterable[str]) -> None:
    """Raises `ConfigError`, in one line, if the unknown keys of a file are of older versions."""
    words = {key: renamed(key) for key in unknown}
    lines = [f"{key} {word}" for key, word in words.items() if word]
    if lines:
        raise ConfigError(f"{path}: written by an older version: {'; '.join(lines)}")
