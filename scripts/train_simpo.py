r"""Stage 2 of the founding recipe: the critic is frozen, the actor learns from preference pairs.

Reads the actor's weights, and --pairs if given; else the actor makes its own into RUN/pairs/,
ranked by --critic, or by return without one. Writes RUN/checkpoints/ and RUN/actor/.

Departures from the paper (Meng, Xia & Chen 2024): (1) pairs are best against worst of K answers,
ranked by a critic's advantage and not by a reward model; (2) an optional NLL term on the chosen
answers (CPO's alpha) keeps small actors from collapsing.

    accelerate launch scripts/train_simpo.py --config configs/train_simpo/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_simpo.py \
        --config configs/train_simpo/gridworld_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import TrainSimPOConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: TrainSimPOConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.data.preference_data import make_preferences
    from lactchain.data.preferences import read_pairs
    from lactchain.environments.language import make_language_env
    from lactchain.trainers.base import save_result, train
    from lactchain.trainers.simpo import simpo_trainer, warn_if_collapsed

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed, settings = config.run.seed, config.preferences
        seed_everything(seed, config.run.threads)
        if config.pairs is None:
            pairs, summary = make_preferences(
                config.environment, config.actor, config.critic, settings, seed, run
            )
        else:
            pairs, summary = read_pairs(config.pairs), {}
        seed_everything(seed, config.run.threads)
        trainer, dropped = simpo_trainer(
            pairs, config, make_language_env(config.environment).grammar, run
        )
        train(trainer)
        warn_if_collapsed(run)
        save_result(trainer, run.path("actor"))
        summary |= {"num_pairs": len(pairs), "num_dropped_rows": sum(dropped.values())}
        run.finish(summary)
    figures("SimPO", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainSimPOConfig)
