r"""Monte-Carlo values: learns from recorded episodes what the behaviour earned behind each token.

Reads --trajectories and the actor's weights, where the value model begins; writes
RUN/checkpoints/ and RUN/values/, which `actor.values` of evaluate and play names. With a cloning
weight the policy shares the trunk, and RUN/values/ is an actor too.

Departures from LMRL-Gym: (1) an episode that was cut ends with the value of its last text, not with
0; (2) hence V is learnt beside Q; (3) what texts share is read once.

    python scripts/train_mc.py --config configs/train_mc/maze_tiny.yaml
    accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_mc.py \
        --config configs/train_mc/maze_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import TrainMCConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: TrainMCConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.environments.language import make_language_env
    from lactchain.trainers.base import save_result, train
    from lactchain.trainers.mc import mc_trainer
    from lactchain.trainers.token_values import training_figures

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed_everything(config.run.seed, config.run.threads)
        trainer = mc_trainer(config, make_language_env(config.environment).grammar, run)
        train(trainer)
        save_result(trainer, run.path("values"))
        summary = training_figures(trainer)
        run.finish(summary)
    figures("Monte-Carlo values", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainMCConfig)
