"""A language model behind servers as a policy: prompts and checks here, generation there."""

import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

import numpy as np

from lactchain.config.settings import EnvironmentConfig, PlayerConfig
from lactchain.data.episodes import sampled_states
from lactchain.data.rollouts import Rollouts
from lactchain.errors import ConfigError, ServerError
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Action, ChainGrammar
from lactchain_extras.serving.dialects import DIALECTS, Request, Response
from lactchain_extras.serving.servers import adapter_name, common_base, load, order
from lactchain_extras.serving.transport import answers, quoted, transport_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lactchain.models.actor import LanguageActor

ASKED = 32
"""So many completions tell whether servers compute as we do, before each round's episodes."""
CUT_LETTER = "\N{REPLACEMENT CHARACTER}"  # its first bytes, where a completion was cut
MOST_LOGPROB = 1e-3  # of a token: 0, and what rounding in 16 bits adds to it


class ServedActor:
    """A `Policy` over the servers of `config.served`, for one version of their weights.

    Every row is a request of its own, with its own seed, so that it draws the same whoever it
    stands beside. Each answer is checked: the tokens that were read are those of the prompt, each
    token of the completion has a log-probability, together they read as its text, and what was
    constrained is a chain.

    Args:
        tokenizer: of the model, as it is here.
        base, adapter: the model and the adapter on it, by the names that the servers have for them.

    Attributes:
        name: what trajectories call it, the version of the weights included.
        values: none, since nothing here guides what servers say.
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
        self.template = PromptTemplate(tokenizer, config.strategy, grammar)
        self._first: ServedActor | None = None
        self._transport = transport_of(config.served)
        loaded = adapter is not None and config.adapter is not None
        self._lost = order(self.dialect, adapter, config.adapter) if loaded else None
        self._pattern, self._max_tokens = None, config.max_new_tokens
        if config.decoding == "constrained":
            self._pattern = pattern_of(grammar)
            # A token has a letter at least; a space may come first, and an end comes last.
            longest = max(len(name.encode()) for name in grammar.action_names)
            around = len(f"{grammar.opening}{grammar.closing}".encode())
            between = len(grammar.separator.encode())
            self._max_tokens = grammar.max_chain_length * (longest + between) + around + 2

    @classmethod
    def from_config(cls, config: PlayerConfig, grammar: ChainGrammar) -> Self:
        """The actor of a configuration; its adapter is loaded wherever it is not yet.

        Raises:
            DataError: the tokenizer is missing or damaged.
            ConfigError: servers cannot do this, have another model, or take no adapters.
            ServerError: a server is not there, or refuses.
        """
        from lactchain.models.loading import load_own_tokenizer

        tokenizer, dialect = load_own_tokenizer(config), DIALECTS[config.served.dialect]
        if not dialect.has_tokens:
            return cls(tokenizer, config, grammar, config.model)
        transport, name = transport_of(config.served), None
        base = common_base(transport, config.model)
        if config.adapter is not None:
            name = adapter_name(config.adapter)
            load(transport, dialect, name, config.adapter)
        return cls(tokenizer, config, grammar, base, name)

    def with_config(self, config: PlayerConfig, grammar: ChainGrammar) -> "ServedActor":
        """The same weights on the same servers, asked and sampled in another way."""
        other = ServedActor(self.tokenizer, config, grammar, self.base, self.adapter)
        other._first = self._first or self
        return other

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations, row b by `seeds[b]` alone; `ServerError`, or `Interrupted`."""
        return answers([self.submit(*row) for row in zip(observations, seeds, strict=True)])

    def submit(self, observation: str, seed: int) -> Future[Action]:
        """The answer to an observation, when it is there; errors as of `act`."""
        ids, text = self.template.encode(observation), ""
        if not self.dialect.has_tokens:
            text = self._text(observation)
        end, config = self.tokenizer.eos_token_id, self.config
        request = Request(self.base, self.adapter, text, ids, seed % 2**63, config.temperature,
                  self._max_tokens, end, self._pattern)  # fmt: skip
        asked, start = self.dialect.write(request), crc32(np.array(ids).tobytes())
        read = partial(self._action, request)
        return self._transport.post(self.dialect.ask, asked, read, start, self._lost)

    @cached_property
    def local(self) -> "LanguageActor":
        """The same actor here, loaded when it is asked for; those of `with_config` share it."""
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
        special = re.compile("|".join(map(re.escape, self.tokenizer.all_special_tokens)) or "(?!)")
        # The server reads texts: what would be a special token there is broken up.
        observation = special.sub(lambda found: " ".join(found[0]), observation)
        text, first = self.template.render(observation), self.tokenizer.bos_token
        adds = first and self.tokenizer("")["input_ids"][:1] == [self.tokenizer.bos_token_id]
        return text.removeprefix(first) if adds else text

    def _action(self, request: Request, body: Any) -> Action:
        """The completion in an answer, once it has passed the checks."""
        try:
            reply = self.dialect.read(body)
            _check_types(reply, len(self.tokenizer))
        except (LookupError, TypeError, ValueError) as error:
            got = f"got {quoted(json.dumps(body), 120)} ({error!r})"
            what = f"expected a completion with its tokens and log-probabilities, {got}"
            mend = "`lactchain doctor` says what is amiss"
            raise ServerError(f"{self.dialect.ask}: {what}; {mend}") from error
        text = self._read(request, reply) if self.dialect.has_tokens else reply.text
        if request.pattern is not None and not re.fullmatch(request.pattern, text):
            what = f"expected a chain, as was asked for, got {quoted(repr(text), 80)}"
            mend = "start the server with structured outputs, and without what rewrites requests"
            raise ServerError(f"{self.dialect.ask}: {what}; {mend}")
        return Action(text, reply.token_ids, tuple(map(float, reply.logprobs)), reply.ended)

    def _read(self, request: Request, reply: Response) -> str:
        """What the tokens of a reply read as here, which the server has read alike."""
        ids, ends = reply.token_ids, reply.ended == "stop"
        text = self.tokenizer.decode(ids[:-1] if ends else ids)
        for what, here, there in (
            ("the prompt's tokens", tuple(request.prompt_ids), reply.prompt_ids),
            ("the number of tokens", min(len(ids), request.max_tokens), len(ids)),
            ("a log-probability for each token", max(1, len(ids)), len(reply.logprobs)),
            ("the end of the completion", request.end, ids[-1] if ends and ids else request.end),
            ("the completion's text", _plain(text), _plain(reply.text)),
        ):
            if here != there:
                got = f"{what}: expected {quoted(repr(here), 80)}, got {quoted(repr(there), 80)}"
                why = "it has another tokenizer, or rewrites what it is asked"
                raise ServerError(f"{got} of the server; {why}: `lactchain doctor` says which")
        return text


def pattern_of(grammar: ChainGrammar) -> str:
    """All completions of a grammar as a regular expression, by which engines constrain.

    Sentencepiece tokenizers begin what they say with a space, which may stand in front.
    """
    name = f"({'|'.join(map(_literal, grammar.action_names))})"
    later = f"({_literal(grammar.separator)}{name}){{0,{grammar.max_chain_length - 1}}}"
    return f" ?{_literal(grammar.opening)}{name}{later}{_literal(grammar.closing)}"


def _literal(text: str) -> str:
    """A text as a regular expression; `re.escape` also escapes what some engines do not know."""
    return re.sub(r"[\\.^$*+?()\[\]{}|]", r"\\\g<0>", text)


def drift_in(
    environment: EnvironmentConfig, config: PlayerConfig, seed: int
) -> dict[str, float] | None:
    """`drift` of an actor's completions in a world; None of servers that speak in texts alone."""
    from lactchain.models.runtime import free_memory

    if not DIALECTS[config.served.dialect].has_tokens:
        return None
    rollouts = Rollouts(environment)
    env, seeds = rollouts.env, [derive_seed(seed, "drift", i) for i in range(ASKED)]
    texts = rollouts.observe(sampled_states(env, ASKED, seeds[0]))
    free = replace(config, decoding="free", temperature=1.0)
    figures = drift(ServedActor.from_config(free, env.grammar), texts, seeds)
    free_memory()
    return figures


def drift(
    actor: ServedActor, observations: Sequence[str], seeds: Sequence[int]
) -> dict[str, float]:
    """How far log-probabilities of the servers' tokens are from those that are computed here.

    `served/mean_drift` and `served/largest_drift` are of |log p here - log p there| of a token.
    `served/effective_samples` is the share of the completions that are left as a sample of the
    weights here, (Σw)² / (B Σw²) with w = p here / p there of each (Kong 1992, "A note on
    importance sampling using standardized weights").
    """
    actions = actor.act(observations, seeds)
    here = token_log_probs(actor.local, observations, actions)
    rows = [ours - action.logprobs for ours, action in zip(here, actions, strict=True)]
    distances = np.abs(np.concatenate(rows))
    sums = np.array([row.sum() for row in rows])
    weights = np.exp(sums - sums.max())  # whose scale is of no matter, and goes beyond all numbers
    return {
        "served/mean_drift": float(distances.mean()),
        "served/largest_drift": float(distances.max()),
        "served/effective_samples": float(weights.sum() ** 2 / (weights**2).sum() / len(rows)),
    }


def token_log_probs(
    actor: "LanguageActor", observations: Sequence[str], actions: Sequence[Action]
) -> list[np.ndarray]:
    """Log-probabilities of all tokens of B completions, each to its own observation.

    By a plain pass of the model at the actor's temperature, whatever it may answer.
    """
    import torch

    from lactchain.functional.tokens import pad, token_logprobs

    model, temperature = actor.decoder.model, actor.decoder.temperature or 1.0
    prompts = actor.template.encode_batch(observations)
    rows = [[*prompt, *a.token_ids] for prompt, a in zip(prompts, actions, strict=True)]
    ids = pad(rows, actor.tokenizer.eos_token_id).to(model.device)
    mask = pad([[1] * len(row) for row in rows], 0).to(model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1] / temperature
        found = token_logprobs(logits, ids[:, 1:]).double().cpu().numpy()
    spans = [(len(p) - 1, len(row) - 1) for p, row in zip(prompts, rows, strict=True)]
    return [row[start:stop] for row, (start, stop) in zip(found, spans, strict=True)]


def check_drift(figures: dict[str, float], most: float, version: str) -> None:
    """Raises `ServerError` where servers compute something else than the weights here."""
    if not (found := figures["served/mean_drift"]) <= most:
        what = f"log-probabilities within {most:g} of those of the weights here"
        got = f"{found:.3g} a token on average; the servers have other weights or flags"
        mend = "see `lactchain doctor`, or raise actor.served.max_drift"
        raise ServerError(f"{version}: expected {what}, got {got}: {mend}")


def _check(config: PlayerConfig, grammar: ChainGrammar, has_tokens: bool) -> None:
    """Refuses what servers cannot do."""
    if config.values is not None:
        what = f"expected null where servers generate, got {config.values}"
        mend = "set actor.served to null to have completions guided or ranked here"
        raise ConfigError(f"actor.values: {what}; {mend}")
    if config.decoding == "constrained" and not grammar.action_names:
        raise ConfigError("actor.decoding: expected free, since any text is a completion here")
    if not has_tokens and (config.decoding == "constrained" or config.adapter is not None):
        what = "vllm or sglang for constrained completions and for adapters, got text"
        mend = "decode free, or take another server"
        raise ConfigError(f"actor.served.dialect: expected {what}; {mend}")


def _check_types(reply: Response, num_tokens: int) -> None:
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


def _plain(text: str) -> str:
    """A text without the space that may begin it, and what was cut at its end."""
    return text.rstrip(CUT_LETTER).removeprefix(" ")
