"""Environments, without torch: the grid world, text and chains for any discrete environment.

Importing this package registers the Gymnasium ids. To add an environment, write a module and add
one line here.
"""

import gymnasium

gymnasium.register(
    "lactchain/GridWorld-v0",
    entry_point="lactchain.environments.gridworld:GridWorld",
    vector_entry_point="lactchain.environments.gridworld:GridWorldVectorEnv",
)
gymnasium.register("lactchain/Maze-v0", entry_point="lactchain.environments.maze:Maze")
gymnasium.register(
    "lactchain/Wordle-v0",
    entry_point="lactchain.environments.wordle:Wordle",
    vector_entry_point="lactchain.environments.wordle_batch:WordleVectorEnv",
)
gymnasium.register(
    "lactchain/Language-v0", entry_point="lactchain.environments.language:language_env"
)
gymnasium.register("lactchain/Probe-v0", entry_point="lactchain.baselines.probes:ProbeEnv")
gymnasium.register("lactchain/Token-v0", entry_point="lactchain.environments.token:TokenEnv")
