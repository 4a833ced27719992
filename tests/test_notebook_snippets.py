"""What a notebook needs takes a few lines: each snippet is run, and its lines are counted."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from script_setups import build_weights, config_of, run_here

import lactchain

SNIPPETS = {
    "an environment": (1, 'env = lactchain.language_env("lactchain/GridWorld-v0")'),
    "a policy of one's own": (
        8,
        """
        class Forward:
            name = "forward"

            def act(self, observations, seeds):
                return [lactchain.Action('["move forward"]') for _ in observations]

        policy = Forward()
        """,
    ),
    "a reward of one's own": (
        5,
        """
        class Near:
            def reward(self, state, action, next_state):
                return (next_state == 0).mean(axis=-1)

        world = lactchain.GridWorld(size=3, reward=Near())
        """,
    ),
    "a chain of what the quickstart trained": (
        2,
        """
        actor = lactchain.load_policy("runs/quickstart/actor")
        chain = actor.act(["0 0 up 1 1"], [0])[0].text
        """,
    ),
    "values of states": (
        2,
        """
        critic = lactchain.load_critic("runs/quickstart")
        values = critic.values(["0 0 up 1 1", "1 0 left 0 1"])
        """,
    ),
    "episodes of any policy": (
        3,
        """
        world = lactchain.EnvironmentConfig(kwargs={"size": 2}, max_chains=4)
        policy = lactchain.FunctionPolicy(lambda text: '["move forward", "turn left"]')
        trajectories = lactchain.collect(policy, world, num_episodes=20)
        """,
    ),
    "an evaluation of any policy": (
        2,
        """
        results, figures = lactchain.evaluate(policy, world)
        success_rate = figures["success_rate"]
        """,
    ),
    "episodes as a frame": (
        2,
        """
        from lactchain.data.trajectories import to_table
        frame = to_table(trajectories).to_pandas()
        """,
    ),
    "pairs of one's own scores": (
        4,
        """
        from lactchain.data.preferences import Candidates
        answers = tuple(map(lactchain.Action, ('["turn left"]', '["move forward"]')))
        scored = [Candidates("0 0 up 1 1", answers, returns=(0.0, 1.0))]
        pairs, dropped = lactchain.make_pairs(scored, rank="return")
        """,
    ),
    "SimPO on a data set of one's own": (
        6,
        """
        from lactchain.stages.train_simpo import TrainSimPOConfig, main

        run, actor = lactchain.RunConfig("runs/mine"), lactchain.ActorConfig(WEIGHTS)
        main(TrainSimPOConfig(run, actor=actor, pairs="mine.jsonl"))
        tuned = lactchain.load_policy("runs/mine")
        """,
    ),
    "a loss of one's own": (
        15,
        """
        from lactchain.models.loading import load_actor
        from lactchain.trainers.base import save_result, train, training_arguments

        class Hinge(lactchain.SimPOTrainer):
            def pair_losses(self, chosen_logps, rejected_logps):
                losses = (1 - chosen_logps + rejected_logps).clamp(min=0)
                return losses, {"rewards/margins": chosen_logps - rejected_logps}

        config = lactchain.TrainingConfig(max_steps=2)
        model, tokenizer = load_actor(lactchain.ActorConfig(WEIGHTS), trainable=True)
        with lactchain.Run.open("runs/hinge", config) as run:
            args, loss = training_arguments(config, "runs/hinge/ckpt", 0), lactchain.SimPOConfig()
            train(trainer := Hinge(model, args, DATA, tokenizer, loss, run=run))
            save_result(trainer, "runs/hinge/actor")
        """,
    ),
    "two runs side by side": (
        1,
        'page = lactchain.write_report("runs/quickstart", beside=["runs/mine"])',
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished pipeline in runs/quickstart, and pairs in mine.jsonl."""
    folder = tmp_path_factory.mktemp("notebook")
    weights = build_weights(folder / "weights")
    config = config_of("run_pipeline", weights, folder / "runs/quickstart", num_rounds=1)
    run_here("run_pipeline", replace(config, warm_start=None))
    row = '{"prompt": "0 0 up 1 1", "chosen": "[\\"turn left\\"]", "rejected": "no"}\n'
    (folder / "mine.jsonl").write_text(row * 8)
    data = [{"prompt": f"{x} 0", "chosen": "yes", "rejected": "no"} for x in range(8)]
    return folder, {"WEIGHTS": str(weights / "actor"), "DATA": data}


@pytest.fixture(scope="module")
def names(finished):
    """What the snippets have in common, one after another, as in a notebook."""
    return {"lactchain": lactchain} | finished[1]


@pytest.mark.parametrize("what", SNIPPETS)
def test_it_takes_no_more_lines_than_promised(what, finished, names, monkeypatch):
    monkeypatch.chdir(finished[0])
    most, code = SNIPPETS[what]
    code = textwrap.dedent(code).strip()
    assert sum(bool(line.strip()) for line in code.splitlines()) <= most
    exec(compile(code, what, "exec"), names)


def test_what_they_leave_is_what_they_say(names):
    assert len(names["trajectories"]) == len(names["frame"]) == 20
    assert 0 <= names["success_rate"] <= 1 and names["values"].shape == (2,)
    assert [pair.chosen for pair in names["pairs"]] == ['["move forward"]']
    assert Path(names["page"]).name == "report.html"
    assert names["tuned"].act(["0 0 up 1 1"], [0])[0].text
