"""The worlds that are shipped, each by itself: rules, words, policies, exact values, pictures.

Importing this package registers their Gymnasium ids. A new world is a file with an environment that
has a method `text_view`, and a line here; one outside of LactChain registers itself.
"""

import gymnasium

# Their classes are Gymnasium's, registered there; importing them gives them their views.
from lactchain.worlds import toy_text as toy_text

gymnasium.register(
    "lactchain/GridWorld-v0",
    entry_point="lactchain.worlds.gridworld.env:GridWorld",
    vector_entry_point="lactchain.worlds.gridworld.env:GridWorldVectorEnv",
)
gymnasium.register("lactchain/Maze-v0", entry_point="lactchain.worlds.maze.env:Maze")
gymnasium.register(
    "lactchain/Wordle-v0",
    entry_point="lactchain.worlds.wordle.env:Wordle",
    vector_entry_point="lactchain.worlds.wordle.env:WordleVectorEnv",
)
