"""Stage 2 of the founding recipe: the critic is frozen, the actor learns from preference pairs.

Reads the actor's weights, and --pairs if given; else the actor makes its own into RUN/pairs/,
ranked by --critic, or by return without one. Writes RUN/checkpoints/ and RUN/actor/.

Departures from the paper (Meng, Xia & Chen 2024): (1) pairs are best against worst of K
completions, ranked by a critic's advantage and not by a reward model; (2) an optional NLL term on
the chosen completions (CPO's alpha) keeps small actors from collapsing.
"""

from dataclasses import dataclass, replace
from typing import Any

from lactchain import plugins
from lactchain.config.settings import ActorConfig, RunConfig, SimPOConfig, TrainingConfig, check
from lactchain.data.evaluations import write_pairs_after
from lactchain.data.sources import open_pairs
from lactchain.environments.language import make_language_env
from lactchain.runs import distributed
from lactchain.runs.process import seed_everything
from lactchain.runs.run import Run
from lactchain.stages import make_preferences
from lactchain.stages.make_preferences import MakePreferencesConfig
from lactchain.stages.stage_run import BatchSettings, stage


@dataclass(frozen=True)
class TrainSimPOConfig(MakePreferencesConfig):
    """Stage 2 of the founding recipe: the critic is frozen, the actor learns from pairs."""

    run: RunConfig = RunConfig(run_dir="runs/train_simpo")
    actor: ActorConfig = ActorConfig()
    pairs: str | None = None
    """Folder or file of preference pairs, ours or any with the columns prompt, chosen and rejected
    (parquet, JSONL, a folder of `datasets`); null: the actor makes its own."""
    loss: SimPOConfig = SimPOConfig()
    training: TrainingConfig = TrainingConfig()

    def __post_init__(self) -> None:
        one = self.pairs is None or self.trajectories is None
        check(one, "trajectories", "null beside `pairs`", self.trajectories)
        check_bound("loss.target_kl", self.loss, self.actor)


def check_bound(name: str, loss: SimPOConfig, actor: ActorConfig) -> None:
    """Raises `ValueError` for a bound on the distance of a policy that cannot be measured."""
    how = actor.decoding, actor.temperature
    measured = loss.target_kl is None or is_plain(actor)
    check(measured, "actor.decoding", f"free, at temperature 1, beside {name}", how)


def is_plain(actor: ActorConfig) -> bool:
    """Whether completions are sampled from the model itself, as its log-probabilities have it."""
    return actor.decoding == "free" and actor.temperature == 1


def main(config: TrainSimPOConfig) -> dict[str, Any]:
    """Trains the actor; returns what it learnt from."""
    batches = [BatchSettings("training.batch_size", "actor.max_new_tokens", texts=2)]
    if config.pairs is None:
        batches += make_preferences.BATCHES
    with stage("SimPO", config, batches) as run:
        if run.outcome is None:
            run.finish(train_simpo(config, run))
    return run.outcome


def train_simpo(config: TrainSimPOConfig, run: Run) -> dict[str, Any]:
    """Pairs, read or made, then SimPO on them."""
    from lactchain.models.actor import policy_file
    from lactchain.models.attention import context_length
    from lactchain.models.loading import load_actor
    from lactchain.models.prompting import PromptTemplate
    from lactchain.trainers.base import save_result, train, training_arguments
    from lactchain.trainers.simpo import SimPOTrainer, preference_rows, warn_if_collapsed
    from lactchain.trainers.trust_region import TrustRegion

    if config.pairs is None:
        pairs, summary = make_preferences.pairs_into(config, run)
    else:
        pairs, summary = open_pairs(config.pairs, make_language_env(config.environment)), {}
    grammar = make_language_env(config.environment).grammar
    seed, training = config.run.seed, config.training
    seed_everything(seed, config.run.threads)
    model, tokenizer = load_actor(config.actor, trainable=True)
    template = PromptTemplate(tokenizer, config.actor.strategy, grammar)
    if not is_plain(config.actor):  # how probable completions were then says nothing of the model
        unknown = {"chosen_logprobs": (), "rejected_logprobs": (), "sampled_logprobs": ()}
        pairs = [replace(pair, **unknown) for pair in pairs]
    rows, dropped = preference_rows(pairs, template, tokenizer, context_length(model.config))
    args = training_arguments(
        training, run.path("checkpoints"), seed, report_to=config.run.report_to
    )
    trainer = SimPOTrainer(model, args, rows, tokenizer, config.loss, run=run)
    region = TrustRegion(trainer, pairs, template, config.loss.target_kl)
    trainer.add_callback(region)
    train(trainer)
    warn_if_collapsed(run)
    after = trainer.logprobs_after(training.batch_size)
    if distributed.is_main():
        write_pairs_after(run.path("pairs_after.json"), after)
    save_result(trainer, run.path("actor"), policy_file(config.actor, grammar))
    summary |= {"num_pairs": len(pairs), "num_dropped_rows": sum(dropped.values())}
    summary |= region.distances()
    plugins.call("card", config, run, "actor", summary)
    return summary
