"""What environments share, without torch: text and chains for any of them, exact values, batches.

Importing this package registers the Gymnasium ids of those that are not worlds of their own.
"""

import gymnasium

gymnasium.register(
    "lactchain/Language-v0", entry_point="lactchain.environments.language:language_env"
)
