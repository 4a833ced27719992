r"""ILQL: learns from recorded episodes what each token is worth under the best behaviour in them.

Reads --trajectories and the actor's weights, where the value model begins; writes
RUN/checkpoints/ and RUN/values/, which `actor.values` of evaluate and play names. With a cloning
weight the policy shares the trunk, and RUN/values/ is an actor too.

Departures from Snell et al. 2022: (1) the state behind an answer is the next prompt as the policy
will see it, not the text so far; (2) a time limit is no ending; (3) equal decisions are merged and
weighted, and what texts share is read once: the same loss in less time.

    python scripts/train_ilql.py --config configs/train_ilql/maze_tiny.yaml
    accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_ilql.py \
        --config configs/train_ilql/maze_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import TrainILQLConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: TrainILQLConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.environments.language import make_language_env
    from lactchain.trainers.base import save_result, train
    from lactchain.trainers.ilql import ilql_trainer
    from lactchain.trainers.token_values import training_figures

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed_everything(config.run.seed, config.run.threads)
        trainer = ilql_trainer(config, make_language_env(config.environment).grammar, run)
        train(trainer)
        save_result(trainer, run.path("values"))
        summary = training_figures(trainer)
        run.finish(summary)
    figures("ILQL", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainILQLConfig)
