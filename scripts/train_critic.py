r"""Stage 1 of the founding recipe: the actor is frozen, the critic regresses on returns.

Reads the actor's and the encoder's weights, and --trajectories if given; else the actor plays its
own episodes into RUN/trajectories/. Writes RUN/checkpoints/, RUN/critic/, and, where the actor's
chains can be enumerated, RUN/policy/, how probable each is in each state, and RUN/values.json: the
critic beside the exact values of the actor.

Departures from the founding text: (1) the data set is collected first and reused for several
epochs, since a frozen actor's episodes stay valid; (2) gamma is per action by default; (3) a time
limit is no ending, cut episodes bootstrap; (4) the last token is pooled, not the first.

    accelerate launch scripts/train_critic.py --config configs/train_critic/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_critic.py \
        --config configs/train_critic/gridworld_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import TrainCriticConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: TrainCriticConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.data.critic_data import critic_episodes, measure_values
    from lactchain.models.critic import EmbeddingCritic, check_critic
    from lactchain.trainers.base import save_result, train
    from lactchain.trainers.critic import critic_trainer, return_scale

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed_everything(config.run.seed, config.run.threads)
        check_critic(config.critic)
        trajectories, summary = critic_episodes(config, run)
        seed_everything(config.run.seed, config.run.threads)
        scale = return_scale(trajectories, config.critic.gamma, config.critic.discount_per)
        critic = EmbeddingCritic.from_config(config.critic, trainable=True, value_scale=scale)
        trainer = critic_trainer(critic, trajectories, config, run)
        train(trainer)
        if trainer.eval_dataset is not None:
            summary |= trainer.evaluate()
        save_result(trainer, run.path("critic"))
        del critic, trainer  # the actor and the trained critic come in their place
        summary |= measure_values(config, run)
        run.finish(summary)
    figures("Critic", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainCriticConfig)
