r"""The whole founding recipe: warm start, then rounds of critic and SimPO, until the target is met.

Reads the base models, or builds tiny ones; writes RUN/warm_start/ and RUN/round_N/*, run folders as
their own scripts make them, RUN/summary.json and RUN/report.html. Killed, it goes on where it was.

Departures from the founding text: (1) the recipe is repeated for some rounds, since one round of a
tiny actor does not finish the grid; (2) a warm start stands in for a base model's knowledge.

    python scripts/run_pipeline.py --config configs/run_pipeline/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/run_pipeline.py \
        --config configs/run_pipeline/gridworld_mistral7b.yaml
"""

import time

import evaluate
import train_bc
import train_critic
import train_simpo

from lactchain.console import figures
from lactchain.jobs import RunPipelineConfig
from lactchain.process import launch
from lactchain.run import Run


def main(config: RunPipelineConfig) -> dict:
    from lactchain import distributed
    from lactchain.budget import print_budget
    from lactchain.inspection.report import write_report
    from lactchain.pipeline import Stages, gather_results

    if config.dry_run:
        return print_budget(config)
    start, cpu_start = time.perf_counter(), time.process_time()
    with Run.of(config) as run:
        if run.finished:
            return run.summary
        stages = Stages(config, run)
        if config.warm_start is not None:
            stages.take_actor(stage := stages.warm_start(), train_bc.main(stage))
        stages.take_evaluation(evaluate.main(stages.evaluation(0)))
        for number in range(1, config.num_rounds + 1):
            stages.take_critic(stage := stages.critic_stage(number), train_critic.main(stage))
            stages.take_actor(stage := stages.simpo_stage(number), train_simpo.main(stage))
            stages.take_evaluation(evaluate.main(stages.evaluation(number)))
            if stages.target_is_met():
                break
        summary = stages.summary(time.perf_counter() - start, time.process_time() - cpu_start)
        if distributed.is_main():
            gather_results(run, number)
        run.finish(summary)
    if distributed.is_main():
        write_report(run.directory)
    figures(f"{run.directory}: see report.html there for pictures", summary)
    return summary


if __name__ == "__main__":
    launch(main, RunPipelineConfig)
