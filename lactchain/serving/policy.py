"""A language model behind servers as a policy: prompts and checks here, generation there."""

import json
import logging
import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

import numpy as np

from lactchain.errors import ConfigError, ServerError
from lactchain.serving.dialects import DIALECTS, Reply, Row
from lactchain.serving.transport import Transport, answers, transport_of
from lactchain.serving.weights import adapter_name, load, models_at, order
from lactchain.settings import PlayerConfig
from lactchain.types import Action, ChainGrammar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lactchain.models.actor import LanguageActor

log = logging.getLogger(__name__)

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What the first bytes of a letter read as, or nothing, where a completion was cut."""

MOST_LOGPROB = 1e-3
"""Of a token: 0, and what rounding in 16 bits adds to it."""


class ServedActor:
    """A `Policy` over the servers of `config.served`, for one version of their weights.

    Every row is a request of its own, with its own seed, so that it draws the same whoever it
    stands beside. Each answer is checked: the tokens that were read are those of the prompt, each
    token of the completion has a log-probability, together they read as its text, and what was
    constrained is a chain.

    Args:
        tokenizer: of the model, as it is here.
        base: the model, by the name that the servers have for it.
        adapter: likewise, of the adapter on it.

    Attributes:
        name: what trajectories call it, the version of the weights included.
        template: makes prompts of observations.
        values: none: nothing here guides what servers say.

    Raises:
        ConfigError: the completions are to be ranked, or guided by values, or constrained in a
            dialect that cannot.
    """

    values = None

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        config: PlayerConfig,
        grammar: ChainGrammar,
        base: str,
        adapter: str | None = None,
    ) -> None:
        from lactchain.models.prompting import PromptTemplate

        self.dialect = DIALECTS[config.served.dialect]
        _check(config, grammar, self.dialect.has_tokens)
        self.name = f"{config.model} ({config.decoding}), {adapter or base} of servers"
        self.tokenizer, self.config, self.grammar = tokenizer, config, grammar
        self.base, self.adapter = base, adapter
        self.template = PromptTemplate.for_grammar(tokenizer, config.strategy, grammar)
        self._first: ServedActor | None = None
        self._transport = transport_of(config.served)
        loaded = adapter is not None and config.adapter is not None
        self._lost = order(self.dialect, adapter, config.adapter) if loaded else None
        self._pattern, self._max_tokens = None, config.max_new_tokens
        if config.decoding == "constrained":
            self._pattern = grammar.pattern
            # A token has a letter at least; a space may come first, and an end comes last.
            longest = max(map(len, (name.encode() for name in grammar.action_names)))
            around = len(f"{grammar.opening}{grammar.closing}".encode())
            between = len(grammar.separator.encode())
            self._max_tokens = grammar.max_chain_length * (longest + between) + around + 2

    @classmethod
    def from_config(cls, config: PlayerConfig, grammar: ChainGrammar) -> Self:
        """The actor of a configuration; its adapter is loaded wherever it is not yet.

        Raises:
            DataError: the tokenizer is missing or damaged.
            ConfigError: as the class; or the servers have another model, or take no adapters.
            ServerError: a server is not there, or refuses.
        """
        from lactchain.models.loading import load_own_tokenizer

        tokenizer, served = load_own_tokenizer(config), config.served
        if served.dialect == "text":
            return cls(tokenizer, config, grammar, config.model)
        transport = transport_of(served)
        base = common_base(transport, config.model)
        if config.adapter is None:
            return cls(tokenizer, config, grammar, base)
        name = adapter_name(config.adapter)
        load(transport, DIALECTS[served.dialect], name, config.adapter)
        return cls(tokenizer, config, grammar, base, name)

    def with_config(self, config: PlayerConfig, grammar: ChainGrammar) -> "ServedActor":
        """The same weights on the same servers, asked and sampled in another way."""
        other = ServedActor(self.tokenizer, config, grammar, self.base, self.adapter)
        other._first = self._first or self
        return other

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations; row b draws its randomness from `seeds[b]` alone.

        Raises:
            ServerError: no server answers, or an answer cannot be used.
            Interrupted: a signal asked to stop.
        """
        return answers([self.submit(*row) for row in zip(observations, seeds, strict=True)])

    def submit(self, observation: str, seed: int) -> Future[Action]:
        """The answer to an observation, when it is there; errors as of `act`."""
        ids = self.template.encode(observation)
        row = Row(
            self.base,
            self.adapter,
            "" if self.dialect.has_tokens else self._text(observation),
            ids,
            seed % 2**63,
            self.config.temperature,
            self._max_tokens,
            self.tokenizer.eos_token_id,
            self._pattern,
        )
        start = crc32(np.array(ids).tobytes())
        body = self.dialect.write(row)
        read = partial(self._action, row)
        return self._transport.post(self.dialect.ask, body, read, start, self._lost)

    @cached_property
    def local(self) -> "LanguageActor":
        """The same actor here, for what needs its weights at hand; loaded when it is asked for.

        Those that `with_config` has made share the weights.
        """
        from lactchain.models.actor import LanguageActor

        config = replace(self.config, served=None)
        if self._first is None:
            return LanguageActor.from_config(config, self.grammar)
        return self._first.local.with_config(config, self.grammar)

    def enumerate(self, observations: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """As `LanguageActor.enumerate`, by the weights here."""
        return self.local.enumerate(observations)

    def log_probs(self, observations: Sequence[str], actions: Sequence[Action]) -> np.ndarray:
        """As `LanguageActor.log_probs`, by the weights here."""
        return self.local.log_probs(observations, actions)

    def _text(self, observation: str) -> str:
        """The prompt for a server that puts the beginning of a text before it by itself."""
        text, first = self.template.render(observation), self.tokenizer.bos_token
        adds = first and self.tokenizer("")["input_ids"][:1] == [self.tokenizer.bos_token_id]
        return text.removeprefix(first) if adds else text

    def _action(self, row: Row, body: Any) -> Action:
        """The completion in an answer, once it has passed the checks."""
        try:
            reply = self.dialect.read(body)
            _check_types(reply, len(self.tokenizer))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServerError(
                f"{self.dialect.ask}: expected a completion with its tokens and log-probabilities, "
                f"got {json.dumps(body)[:120]} ({error!r}); `lactchain doctor` says what is amiss"
            ) from error
        text = self._read(row, reply) if self.dialect.has_tokens else reply.text
        if row.pattern is not None and not re.fullmatch(row.pattern, text):
            raise ServerError(
                f"{self.dialect.ask}: expected a chain, as was asked for, got {text!r}; start the "
                "server with structured outputs, and without what rewrites requests"
            )
        return Action(text, reply.token_ids, tuple(map(float, reply.logprobs)), reply.ended)

    def _read(self, row: Row, reply: Reply) -> str:
        """What the tokens of a reply read as here, which the server has read alike."""
        if reply.prompt_ids != tuple(row.prompt_ids):
            raise _differs("the prompt's tokens", len(row.prompt_ids), len(reply.prompt_ids))
        ids, count = reply.token_ids, len(reply.logprobs)
        if not ids or len(ids) != count:
            raise _differs("a log-probability for each token", len(ids), count)
        if reply.ended == "stop" and ids[-1] != row.end:
            raise _differs("the end of the completion", row.end, ids[-1])
        spoken = ids[:-1] if reply.ended == "stop" else ids
        text = self.tokenizer.decode(spoken)
        if _plain(text) != _plain(reply.text):
            raise _differs("the completion's text", text, reply.text)
        return text


def served_or_here(config: PlayerConfig, grammar: ChainGrammar) -> "LanguageActor | ServedActor":
    """The actor of a configuration: behind its servers, or loaded into this process."""
    if config.served is not None:
        return ServedActor.from_config(config, grammar)
    from lactchain.models.actor import LanguageActor

    return LanguageActor.from_config(config, grammar)


def common_base(transport: Transport, model: str) -> str:
    """The name that all servers have for a model; `ConfigError` where one has another model."""
    names = {}
    for url in transport.urls:
        (base, *_) = [card for card in models_at(transport, url) if not card.get("parent")]
        path = str(base.get("root") or base["id"])
        if not _may_be(path, model):
            raise ConfigError(
                f"actor.model: expected {path}, which {url} serves, got {model}; give the model "
                "that the server was started with, or another address"
            )
        names[url] = base["id"]
    if len(set(names.values())) > 1:
        raise ConfigError(
            f"actor.served.urls: expected one name for the model, got {names}; give all servers "
            "the same --served-model-name"
        )
    return names[transport.urls[0]]


def _may_be(there: str, here: str) -> bool:
    """Whether a server's model may be the one of a name here; a warning where that is a guess."""
    if there == here:
        return True
    if os.path.exists(there) and os.path.exists(here):  # of any name, too long or not
        return Path(there).samefile(here)
    if PurePath(there).name != PurePath(here).name:
        return False
    log.warning(
        "actor.model: %s of the server is taken for %s by its last word alone; `lactchain doctor` "
        "compares tokenizers, and a pipeline weighs completions by the weights here",
        there,
        here,
    )
    return True


def _check(config: PlayerConfig, grammar: ChainGrammar, has_tokens: bool) -> None:
    """Refuses what servers cannot do."""
    if config.decoding == "scored" or config.values is not None:
        raise ConfigError(
            "actor.decoding: expected free or constrained, without values, where servers "
            f"generate, got {config.decoding}; set actor.served to null to rank completions here"
        )
    if config.decoding == "constrained" and not grammar.action_names:
        raise ConfigError("actor.decoding: expected free, since any text is a completion here")
    if not has_tokens and (config.decoding == "constrained" or config.adapter is not None):
        raise ConfigError(
            "actor.served.dialect: expected vllm or sglang for constrained completions and for "
            "adapters, got text; decode free, or take another server"
        )


def _check_types(reply: Reply, num_tokens: int) -> None:
    """Raises `TypeError` or `ValueError` for what no text, token or log-probability can be."""
    if not isinstance(reply.text, str):
        raise TypeError(f"text {reply.text!r}")
    reply.text.encode()  # halves of letters are JSON, and no text
    for token in reply.token_ids:
        if type(token) is not int or not 0 <= token < num_tokens:
            raise ValueError(f"token {token!r}, of {num_tokens}")
    for value in reply.logprobs:
        if type(value) not in (int, float) or not -math.inf < value <= MOST_LOGPROB:
            raise ValueError(f"log-probability {value!r}")


def _differs(what: str, here: Any, there: Any) -> ServerError:
    return ServerError(
        f"{what}: expected {here!r}, got {there!r} of the server; it has another tokenizer, or "
        "rewrites what it is asked: `lactchain doctor` says which"
    )


def _plain(text: str) -> str:
    """A text without the space that may begin it, and what was cut at its end."""
    return text.rstrip(UNFINISHED).removeprefix(" ")
