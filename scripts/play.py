r"""Plays an episode in the terminal, step by step: you are the policy, or you watch an actor.

Reads the actor's weights, if --actor.model is given; writes nothing. You see what a model sees, and
type numbers of actions, such as `0 0 1`, or an answer as a model gives it. Ctrl-D ends the game.

    python scripts/play.py --config configs/play/gridworld_tiny.yaml
    python scripts/play.py --config configs/play/gridworld_mistral7b.yaml
"""

import signal

from lactchain.console import console, plain, show_state
from lactchain.jobs import PlayConfig
from lactchain.process import launch


def main(config: PlayConfig) -> float | dict:
    from lactchain.data.shards import derive_seed
    from lactchain.environments.language import make_language_env
    from lactchain.environments.scripted import HumanPolicy

    if config.dry_run:
        from lactchain.budget import print_budget

        return print_budget(config)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # there is nothing to save
    env = make_language_env(config.environment)
    policy = HumanPolicy(env.grammar, lambda text: console.input(plain(text.split("\n")[-1])))
    if config.actor is not None:
        from lactchain.budget import check_budget
        from lactchain.models.actor import LanguageActor

        check_budget(config)
        policy = LanguageActor.from_config(config.actor, env.grammar)
    observation, info = env.reset(seed=config.seed)
    over, num_chains, total = False, 0, 0.0
    while not over:
        show_state(env, observation)
        try:
            action = policy.act([observation], [derive_seed(config.seed, num_chains)])[0]
        except EOFError:
            break
        observation, reward, terminated, truncated, info = env.step(action.text)
        moves = zip(info["executed"], info["bumped"], strict=True)
        played = ", ".join(f"{name} (bumped)" if bumped else name for name, bumped in moves)
        outcome = played or f"nothing done: {info['invalid_reason']}"
        console.print(plain(f"answer {action.text}\n{reward:+.3g}   {outcome}"), soft_wrap=True)
        over, num_chains, total = terminated or truncated, num_chains + 1, total + reward
    show_state(env, observation)
    ending = "reached" if info["success"] else "did not reach"
    verdict = f"{policy.name} {ending} the goal: {num_chains} answers, return {total:+.3g}"
    console.print(plain(verdict), soft_wrap=True)
    return total


if __name__ == "__main__":
    launch(main, PlayConfig)
