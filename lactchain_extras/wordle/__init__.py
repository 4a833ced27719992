"""Wordle by LMRL-Gym's rules."""


def register() -> None:
    """Registers the id."""
    import gymnasium

    gymnasium.register("lactchain/Wordle-v0", entry_point="lactchain_extras.wordle.env:Wordle")
