"""A language model as the environment: one token is one step."""


def register() -> None:
    """Registers the id."""
    import gymnasium

    gymnasium.register("lactchain/Token-v0", entry_point="lactchain_extras.token_env.env:TokenEnv")
