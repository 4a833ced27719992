r"""Evaluates an actor: an episode from every start state, and sampled answers.

Reads the actor's weights; writes RUN/trajectories/*.parquet, RUN/episodes.json (one line per
episode), RUN/summary.json and, where answers are ranked by values, RUN/answer_values.json. Decoding
and temperature are the actor's: greedy and free by default, with --actor.decoding constrained or
scored as alternatives.

    python scripts/evaluate.py --config configs/evaluate/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/multi_gpu.yaml scripts/evaluate.py \
        --config configs/evaluate/gridworld_mistral7b.yaml
"""

from dataclasses import replace

from lactchain.console import figures
from lactchain.jobs import EvaluateConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: EvaluateConfig) -> dict:
    from lactchain import distributed
    from lactchain.budget import check_budget, print_budget
    from lactchain.data.answer_values import answer_values
    from lactchain.data.evaluations import write_answer_values, write_episodes
    from lactchain.data.rollouts import Rollouts, evaluate, invalid_rate
    from lactchain.models.actor import LanguageActor

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed, samples = config.run.seed, config.evaluation.num_samples
        seed_everything(seed, config.run.threads)
        rollouts = Rollouts(config.environment, config.evaluation.num_envs)
        actor = LanguageActor.from_config(config.actor, rollouts.env.grammar)
        repeats = config.evaluation.num_episodes_per_start
        results, summary = evaluate(actor, rollouts, run.path("trajectories"), seed, repeats)
        if samples:
            sampling = replace(config.actor, decoding="free", temperature=1.0)
            sampler = actor.with_config(sampling, rollouts.env.grammar)
            summary["sampled_invalid_rate"] = invalid_rate(
                sampler, rollouts, samples, seed, run.directory
            )
        if distributed.is_main():
            write_episodes(run.path("episodes.json"), results)
            if (values := answer_values(actor, rollouts.env)) is not None:
                write_answer_values(run.path("answer_values.json"), values)
        run.log_once({f"eval/{name}": value for name, value in summary.items()}, step=0)
        run.finish(summary)
    figures("Evaluation", summary)
    return summary


if __name__ == "__main__":
    launch(main, EvaluateConfig)
