"""One token is one step: the generation of a sentence, around any causal language model.

The model is injected as a `NextToken`, numpy in and numpy out, so that nothing here knows what it
runs on; `lactchain_extras.next_token` makes one of a causal language model.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.errors import ConfigError, EnvironmentFault

SHARPEST = 4.0
"""The strongest perturbation multiplies or divides the logits by this."""

REPLAY_STEPS = 1_000_000
"""Steps that the replay buffer of Stable-Baselines3 holds by default."""

LARGEST = 1e4
"""Logits and log-probabilities are observed cut to this size: a space needs bounds."""

log = logging.getLogger(__name__)


def register() -> None:
    """Registers the id."""
    gym.register("lactchain/Token-v0", entry_point="lactchain_extras.token_env:TokenEnv")


class NextToken(Protocol):
    """A causal language model, numpy in and numpy out.

    Attributes:
        vocab_size: V, how many logits there are.
        eos_token_id: the token that ends a sentence.
        max_length: longest prompt and sentence together, in tokens.
    """

    vocab_size: int
    eos_token_id: int
    max_length: int

    def encode(self, prompt: str) -> list[int]:
        """The token ids of a prompt."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """What token ids of a sentence read as."""

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits (V,) of the token that follows."""

    def close(self) -> None:
        """Frees the model."""


Reward = Callable[[str, float], float]
"""(finished text, its log-probability under the unperturbed model) → reward."""

Perturbation = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]
"""(logits (V,), strength in [−1, 1], generator) → the logits that the token is drawn from."""


def temper(logits: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Flattens the distribution (strength > 0) or sharpens it (< 0); 0 leaves it alone."""
    return logits * SHARPEST**-strength


def fluency(text: str, logprob: float) -> float:
    """The log-probability of the text under the model without perturbation."""
    return logprob


class TokenEnv(gym.Env[np.ndarray, Any]):
    """A language model says a sentence, and the agent perturbs what it draws its tokens from.

    ## Description
    One sentence is one episode, one token one step. The model gives the distribution of the next
    token, the agent says whether, or how strongly, to perturb it, and a token is drawn.

    ## Action Space
    - `control="switch"`: `Discrete(2)`; 0 leaves the distribution alone, 1 perturbs it with
      strength 1. What DQN and PPO play.
    - `control="strength"`: `Box(-1, 1, (1,))`, the strength; 0 leaves the distribution alone. What
      SAC plays, which takes no discrete actions.

    ## Observation Space
    - `view="compact"`: `Box` of `top_k` + 2 float32: the largest log-probabilities of the next
      token in descending order, the entropy of its distribution in nats, and the margin of the
      likeliest token over the second in logits.
    - `view="full"`: `Box` of all V logits as float32. A replay buffer keeps two observations a
      step: with the default million steps of Stable-Baselines3 and V = 6,000 that is 48 GB. The
      environment logs what it will be, and `replay_bytes` computes it for other sizes.
    All numbers are cut to ±10,000.

    ## Starting State
    A prompt drawn uniformly, or `reset(options={"prompt": number})`.

    ## Rewards
    `reward(text, logprob)` of the finished text and of its log-probability under the unperturbed
    model, when the sentence is over; 0 before.

    ## Episode End
    Terminated: the end-of-sequence token was drawn. Truncated: `max_new_tokens` tokens were, and
    the sentence had not ended; its text is rewarded as it is.

    ## Information
    `prompt` (its number), `text` and `token_ids` (said so far), `logprob` (of these, under the
    unperturbed model).

    ## Arguments
    - `model`: a `NextToken`; None stands for `LetterModel()`, a toy.
    - `prompts`: texts to begin with.
    - `reward`, `perturbation`: see there; `fluency` and `temper` by default.
    - `control`, `view`, `top_k`, `max_new_tokens`: see above.
    - `render_mode`: "ansi" (prompt and text so far) or None.

    Raises `ConfigError` if these do not fit together: a prompt that leaves no room for
    `max_new_tokens` in the model's context, more `top_k` than tokens. Raises `EnvironmentFault`
    when the reward or a logit is not finite, or a perturbation makes something else of logits.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(
        self,
        model: NextToken | None = None,
        prompts: Sequence[str] = ("",),
        reward: Reward = fluency,
        *,
        perturbation: Perturbation = temper,
        control: Literal["switch", "strength"] = "switch",
        view: Literal["compact", "full"] = "compact",
        top_k: int = 8,
        max_new_tokens: int = 16,
        render_mode: str | None = None,
    ) -> None:
        self.model = LetterModel() if model is None else model
        if isinstance(prompts, str):
            raise ConfigError(f"prompts: expected a list of texts, got {prompts!r} alone")
        self.prompts = tuple(prompts)
        self.reward, self.perturbation = reward, perturbation
        self.top_k, self.max_new_tokens = top_k, max_new_tokens
        self.render_mode, self._full = render_mode, view == "full"
        self._prompt_ids = [list(self.model.encode(prompt)) for prompt in self.prompts]
        self._check_arguments(control, view)
        size = self.model.vocab_size if self._full else top_k + 2
        self.observation_space = spaces.Box(-LARGEST, LARGEST, (size,), np.float32)
        switch = control == "switch"
        self.action_space = spaces.Discrete(2) if switch else spaces.Box(-1.0, 1.0, (1,))
        if self._full:
            message = "an observation is %d logits: a replay buffer of %d steps takes %.1f GB"
            log.info(message, size, REPLAY_STEPS, self.replay_bytes() / 1e9)
        self._over = True

    def replay_bytes(self, num_steps: int = REPLAY_STEPS) -> int:
        """Memory of the observations in a replay buffer of that many steps: two for each."""
        return 2 * num_steps * 4 * self.observation_space.shape[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts a sentence after a drawn prompt, or after the prompt of that number."""
        super().reset(seed=seed)
        number = (options or {}).get("prompt")
        if number is None:
            number = self.np_random.integers(len(self.prompts))
        elif number not in range(len(self.prompts)):
            raise ValueError(f"prompt: expected 0 to {len(self.prompts) - 1}, got {number!r}")
        self._prompt = int(number)
        self._token_ids: list[int] = []
        self._logprob = 0.0
        self._over = False
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Draws one token from the distribution as the action perturbs it."""
        if self._over:
            raise gym.error.ResetNeeded("the sentence is over: call reset() before step()")
        if action not in self.action_space:
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        strength = float(np.asarray(action).item())
        perturbed = self.perturbation(self._logits, strength, self.np_random)
        if np.shape(perturbed) != self._logits.shape or np.isnan(perturbed).any():
            got = f"expected {self._logits.size} logits, got {perturbed}"
            raise EnvironmentFault(f"{self}: perturbation: {got}")
        # The Gumbel trick draws from the softmax of the logits.
        token = int(np.argmax(perturbed + self.np_random.gumbel(size=perturbed.shape)))
        self._logprob += float(_log_softmax(self._logits)[token])
        self._token_ids.append(token)
        terminated = token == self.model.eos_token_id
        truncated = not terminated and len(self._token_ids) >= self.max_new_tokens
        self._over = terminated or truncated
        info = self._info()
        reward = self._reward(info["text"]) if self._over else 0.0
        return self._observe(), reward, terminated, truncated, info

    def render(self) -> str:
        """The prompt, and what has been said so far."""
        return f"{self.prompts[self._prompt]} > {self._text()}"

    def close(self) -> None:
        """Frees the model; the environment cannot be used any more."""
        self.model.close()

    def _observe(self) -> np.ndarray:
        logits = self.model.logits(self._prompt_ids[self._prompt] + self._token_ids)
        self._logits = np.asarray(logits, dtype=np.float64)
        if not np.isfinite(self._logits).all():
            raise EnvironmentFault(f"{self}: expected finite logits, got NaN or infinite ones")
        seen = self._logits if self._full else self._summary()
        return np.clip(seen, -LARGEST, LARGEST).astype(np.float32)

    def _summary(self) -> np.ndarray:
        logprobs = _log_softmax(self._logits)
        count = max(self.top_k, 2)  # two at least, for the margin
        top = np.sort(np.partition(logprobs, -count)[-count:])[::-1]
        entropy = -float(np.exp(logprobs) @ logprobs)
        return np.array([*top[: self.top_k], entropy, top[0] - top[1]])

    def _text(self) -> str:
        ended = self._token_ids[-1:] == [self.model.eos_token_id]
        return self.model.decode(self._token_ids[:-1] if ended else self._token_ids)

    def _info(self) -> dict[str, Any]:
        return {
            "prompt": self._prompt,
            "text": self._text(),
            "token_ids": list(self._token_ids),
            "logprob": self._logprob,
        }

    def _reward(self, text: str) -> float:
        reward = float(self.reward(text, self._logprob))
        if not math.isfinite(reward):
            raise EnvironmentFault(f"{self}: reward: expected a finite number, got {reward}")
        return reward

    def _check_arguments(self, control: str, view: str) -> None:
        context, most = self.model.max_length, self.model.vocab_size
        room, steps = context - self.max_new_tokens, self.max_new_tokens
        shorter = f"1 to {context - 1}, less than the model's context"
        rules = [
            (control in ("switch", "strength"), "control", "switch or strength", repr(control)),
            (view in ("compact", "full"), "view", "compact or full", repr(view)),
            (self.prompts, "prompts", "at least one", "none"),
            (1 <= steps < context, "max_new_tokens", shorter, steps),
            (1 <= self.top_k <= most, "top_k", f"1 to {most}, the number of tokens", self.top_k),
        ]
        fitting = f"1 to {room} tokens (the model's context of {context} less max_new_tokens)"
        for number, token_ids in enumerate(self._prompt_ids):
            count = len(token_ids)
            rules.append((1 <= count <= room, f"prompts[{number}]", fitting, count))
        for holds, name, expected, got in rules:
            if not holds:
                raise ConfigError(f"{name}: expected {expected}, got {got}")


class LetterModel:
    """A toy `NextToken`: the next letter depends on the last one alone, by a table.

    Tokens 0-25 are the letters, 26 ends the sentence and also stands before it.
    """

    vocab_size, eos_token_id, max_length = 27, 26, 1024

    def __init__(self) -> None:
        self.table = np.random.default_rng(0).normal(scale=2.0, size=(27, 27))

    def encode(self, prompt: str) -> list[int]:
        """The letters of the prompt; other characters are left out."""
        return [26, *(ord(letter) - ord("a") for letter in prompt if "a" <= letter <= "z")]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The letters."""
        return "".join(chr(ord("a") + token) for token in token_ids)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The row of the last letter (27,)."""
        return self.table[token_ids[-1]]

    def close(self) -> None:
        """There is nothing to free."""


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
