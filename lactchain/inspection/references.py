"""What others reach with classic agents, to be set beside a learning curve.

Source: benchmark.md of DLR-RM/rl-baselines3-zoo (commit 0088472): mean return of one trained agent
each, with its standard deviation over episodes and the steps that it was trained for.
"""

from typing import Any

from lactchain.inspection.run_view import RunView

ZOO = {
    "Acrobot-v1": {"DQN": (-76.639, 11.752, "100k"), "PPO": (-73.506, 18.201, "1M")},
    "CartPole-v1": {"DQN": (500.0, 0.0, "50k"), "PPO": (500.0, 0.0, "100k")},
    "LunarLander-v2": {"DQN": (154.382, 79.241, "100k"), "PPO": (242.119, 31.823, "1M")},
    "MountainCar-v0": {"DQN": (-100.849, 9.925, "120k"), "PPO": (-110.423, 19.473, "1M")},
    "MountainCarContinuous-v0": {"DDPG": (93.512, 0.048, "300k"), "PPO": (88.343, 2.572, "20k")},
    "Pendulum-v1": {"DDPG": (-152.099, 94.282, "20k"), "PPO": (-172.225, 104.159, "100k")},
}


def references(view: RunView) -> list[dict[str, Any]]:
    """The zoo's figures for the environment of a run; none where it has none."""
    found = ZOO.get(str(view.world.get("id")), {})
    return [
        {"label": f"zoo's {name}, {steps} steps: {mean:g} ± {spread:g}", "mean": mean}
        for name, (mean, spread, steps) in found.items()
    ]
