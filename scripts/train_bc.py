r"""Behaviour cloning: the actor learns to answer as scripted behaviour does (or as chosen answers).

Reads the actor's weights; writes RUN/behavior/*.parquet, RUN/checkpoints/ and RUN/actor/.

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
    from lactchain.data.offline import behavior_examples
    from lactchain.data.preferences import read_pairs
    from lactchain.environments.language import make_language_env
    from lactchain.models.loading import load_actor
    from lactchain.models.prompting import PromptTemplate
    from lactchain.trainers.base import train
    from lactchain.trainers.behavior_cloning import behavior_cloning_trainer, cloning_rows
    from lactchain.types import Action

    with Run.open(config.run.run_dir, config, resume=config.run.resume) as run:
        if run.finished:
            return run.summary
        seed_everything(config.run.seed, config.run.threads)
        env = make_language_env(config.environment)
        if config.pairs is None:
            examples = behavior_examples(env, config.behavior, config.run.seed)
        else:
            pairs = read_pairs(config.pairs)
            examples = [(p.prompt, Action(p.chosen, p.chosen_token_ids)) for p in pairs]
        model, tokenizer = load_actor(config.actor, trainable=True)
        template = PromptTemplate.for_grammar(tokenizer, config.actor.strategy, env.grammar)
        rows, dropped = cloning_rows(examples, template, tokenizer)
        trainer = behavior_cloning_trainer(
            model,
            rows,
            tokenizer,
            config.training,
            run.path("checkpoints"),
            config.run.seed,
            run=run,
            report_to=config.run.report_to,
        )
        train(trainer)
        trainer.save_model(str(run.path("actor")))
        summary = {"num_examples": len(rows), "num_dropped": sum(dropped.values())}
        run.finish(summary)
    figures("Behaviour cloning", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainBCConfig)
