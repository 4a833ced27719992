"""Episodes that nobody has played."""

from lactchain import Action, Trajectory


def trajectory(texts, said, rewards=None, infos=None, *, terminated=True, **others) -> Trajectory:
    """An episode of these texts and completions that has ended, or else was cut.

    As a default each step costs 1, and infos tell nothing.
    """
    told = {"env_id": "test/Env-v0", "seed": 0, "truncated": not terminated}
    return Trajectory(
        observations=tuple(texts),
        actions=tuple(Action(text) if isinstance(text, str) else text for text in said),
        rewards=(-1.0,) * len(said) if rewards is None else tuple(rewards),
        infos=tuple(infos or [{}] * len(texts)),
        terminated=terminated,
        **told | others,
    )
