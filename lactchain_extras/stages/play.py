"""Plays an episode in the terminal, step by step: you are the policy, or you watch an actor.

Reads the actor's weights, if --actor.model is given; writes nothing but the moving picture, if
--gif names a file. You see what a model sees, and type numbers of actions, such as `0 0 1`, or a
completion as a model gives it. What is no legal chain costs you nothing: you are told what is one,
and asked again. Ctrl-D ends the game.
"""

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from lactchain import plugins
from lactchain.config.bounds import AtLeast0, Bounded
from lactchain.config.settings import EnvironmentConfig, GuidedActorConfig
from lactchain.data.episodes import Episode
from lactchain.environments.extractors import Chain, Rejection
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.scripted import RowPolicy
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.console import console, plain
from lactchain.runs.process import is_dry_run
from lactchain.stages.stage_run import BatchSettings, dry_run, require_numbers
from lactchain.types import ChainGrammar, Policy

MOST_LISTED = 12  # actions whose numbers a person is told
FEW = 3  # of more than that, so many for examples


@dataclass(frozen=True)
class PlayConfig(Bounded):
    """A game in the terminal."""

    environment: EnvironmentConfig = EnvironmentConfig()
    actor: GuidedActorConfig | None = None
    """Who plays; null: you."""
    seed: AtLeast0 = 0
    """Seed of the start state."""
    gif: str | None = None
    """File for the episode as a moving picture, in a world that draws itself; null: none."""


def main(config: PlayConfig) -> float | dict:
    """Plays until the episode ends, or you stop; returns its return."""
    require_numbers(config)
    if is_dry_run():
        return dry_run(config, [BatchSettings("", "actor.max_new_tokens")])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # there is nothing to save
    env = make_language_env(config.environment)
    policy, episode = _player(config, env), Episode(config.seed)
    if config.gif is None:
        return play(env, policy, config.seed)[0]
    films = plugins.required("films", "gif")
    films.film(config.environment, episode, ())  # before an hour is played for nothing
    total, completions = play(env, policy, config.seed)
    films.write_gif(config.gif, {policy.name: films.film(config.environment, episode, completions)})
    return total


def _player(config: PlayConfig, env: LanguageEnv) -> Policy:
    """Who plays: you, or an actor."""
    if config.actor is None:
        if hasattr(sys.stdin, "reconfigure"):  # what is no text is nothing that can be played
            sys.stdin.reconfigure(errors="backslashreplace")
        ask = lambda text: console.input(plain(text.split("\n")[-1]))  # noqa: E731
        return HumanPolicy(env, ask)
    from lactchain.models.actor import load_player

    return load_player(config.actor, env.grammar)


class HumanPolicy(RowPolicy):
    """The person at the keyboard, who is asked again until what is said can be played.

    Numbers of actions, such as `0 0 1`, or the name of one (spaces do not matter), are put into the
    format of a completion; anything else is the completion, letter for letter. `ask` shows a text
    and returns the line that was typed.
    """

    name = "human"

    def __init__(self, env: LanguageEnv, ask: Callable[[str], str]) -> None:
        self.env, self.ask, self.grammar = env, ask, env.grammar
        names = enumerate(self.grammar.action_names)
        self._numbers = {name.replace(" ", ""): number for number, name in names}

    def complete(self, text: str, seed: int) -> str:
        """What is typed, in the format of a completion."""
        names = self.grammar.action_names
        listed = names if len(names) <= MOST_LISTED else names[:FEW]
        legend = [f"{number} {spoken(name)}" for number, name in enumerate(listed)]
        legend += ["..."] * (len(names) > len(listed))
        question = f"{text}\n[{', '.join(legend)}] > "
        while not is_legal(self.env, completion := self._completion(self.ask(question))):
            pass
        return completion

    def _completion(self, line: str) -> str:
        numbers = {str(number): number for number in self._numbers.values()}
        words = line.split()
        if line.replace(" ", "") in self._numbers:
            return self.grammar.render([self._numbers[line.replace(" ", "")]])
        typed = words and all(word in numbers for word in words)
        return self.grammar.render([numbers[word] for word in words]) if typed else line


def spoken(name: str) -> str:
    """An action's name as people write it: the letters of a word together."""
    parts = name.split()
    return "".join(parts) if all(len(part) == 1 for part in parts) else name


def is_legal(env: LanguageEnv, completion: str) -> bool:
    """Whether a completion is a chain; if it is none, says what is one."""
    reading = env.read(completion)
    if isinstance(reading, Rejection):
        wrong = f"{reading.detail}: " if reading.reason in ("illegal_action", "too_long") else ""
        console.print(plain(f"nothing played: {wrong}{what_is_legal(env.grammar)}"))
    return isinstance(reading, Chain)


def what_is_legal(grammar: ChainGrammar) -> str:
    """What a person may type, in words."""
    names, longest = grammar.action_names, grammar.max_chain_length
    if not names:
        return "type any text"
    if len(names) > MOST_LISTED:
        shown = " or ".join(f"`{spoken(name)}`" for name in names[:: len(names) // 2][:2])
        return f"type a word of this world's list of {len(names)}, such as {shown}; no other counts"
    one = f"the number or the name of an action, such as `0` or `{names[0]}`"
    return f"type {one}" if longest == 1 else f"type {one}, or up to {longest} numbers, as `0 0 1`"


def play(env: LanguageEnv, policy: Policy, seed: int) -> tuple[float, list[str]]:
    """An episode of any policy, shown step by step; its return, and the completions."""
    observation, info = env.reset(seed=seed)
    over, completions, total = False, [], 0.0
    while not over:
        _show_state(env, observation)
        try:
            action = policy.act([observation], [derive_seed(seed, len(completions))])[0]
        except EOFError:
            break
        completions.append(action.text)
        observation, reward, terminated, truncated, info = env.step(action.text)
        moves = zip(info["executed"], info["bumped"], strict=True)
        played = ", ".join(f"{name} (bumped)" if bumped else name for name, bumped in moves)
        outcome = played or f"nothing done: {info['invalid_reason']}"
        console.print(plain(f"completion {action.text}\n{reward:+.3g}   {outcome}"), soft_wrap=True)
        over, total = terminated or truncated, total + reward
    _show_state(env, observation)
    endings = {True: "reached the goal", False: "did not reach the goal", None: "came to the end"}
    took = f"{len(completions)} completion{'' if len(completions) == 1 else 's'}"
    verdict = f"{policy.name} {endings[info['success']]}: {took}, return {total:+.3g}"
    console.print(plain(verdict), soft_wrap=True)
    return total, completions


def _show_state(env: LanguageEnv, observation: str) -> None:
    """Prints the state of a language environment: its drawing, where it has one, and its text."""
    console.rule()
    if env.env.render_mode == "ansi":
        console.print(Text.from_ansi(env.env.render()))
    console.print(plain(observation), soft_wrap=True)
