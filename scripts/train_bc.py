r"""Behaviour cloning: the actor learns to answer as scripted behaviour, pairs or episodes do.

Reads the actor's weights, and --trajectories or --pairs if given (else scripted behaviour is made
on the spot); writes RUN/checkpoints/ and RUN/actor/. With --only_successes or --best_fraction the
best episodes alone are cloned (%BC).

A tiny actor knows nothing, so the founding recipe begins here: with a mixture of shortest paths
and random chains it learns the form of an answer and a first notion of the state. On TRL's
SFTTrainer; only the tokens of the answers are learnt.

    python scripts/train_bc.py --config configs/train_bc/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_bc.py \
        --config configs/train_bc/gridworld_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import TrainBCConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: TrainBCConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.environments.language import make_language_env
    from lactchain.trainers.base import save_result, train
    from lactchain.trainers.behavior_cloning import cloning_trainer

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed_everything(config.run.seed, config.run.threads)
        trainer, dropped = cloning_trainer(config, make_language_env(config.environment), run)
        train(trainer)
        save_result(trainer, run.path("actor"))
        num_examples, num_dropped = len(trainer.train_dataset), sum(dropped.values())
        summary = {"num_examples": num_examples, "num_dropped": num_dropped}
        run.finish(summary)
    figures("Behaviour cloning", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainBCConfig)
