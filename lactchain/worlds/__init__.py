"""The worlds that are shipped, each by itself: rules, words, policies, exact values, pictures.

Importing this package registers their Gymnasium ids, and that of any other one in text. A new world
is a file with an environment that has a method `text_view`, and a line here; other packages name a
function that registers theirs.
"""

import gymnasium

from lactchain import plugins

gymnasium.register("lactchain/GridWorld-v0", entry_point="lactchain.worlds.gridworld:GridWorld")
gymnasium.register(
    "lactchain/Language-v0", entry_point="lactchain.environments.language:language_env"
)

for _name in plugins.names(plugins.WORLDS):
    plugins.add_on(_name, plugins.WORLDS)()
