"""What a server is, and whether it can play an actor: a finding for each thing that must be so."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from lactchain.errors import Interrupted, LactChainError
from lactchain.serving.dialects import DIALECTS, Reply, Row
from lactchain.serving.identity import identity
from lactchain.serving.policy import ServedActor, common_base
from lactchain.serving.transport import RefusedError, Transport, answers, transport_of
from lactchain.serving.weights import adapter_name, load, names_at, unload
from lactchain.settings import PlayerConfig, SamplerConfig, recast
from lactchain.types import ChainGrammar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HOT = 4.0
"""A temperature at which probabilities are plainly others."""
DRAWS = 16
SURE = 1e-4
"""A log-probability nearer to 0 than this is that of a token which nothing else competes with."""


@dataclass(frozen=True)
class Finding:
    """What was found of one thing; `ok` is None where the server does not tell.

    Attributes:
        mend: what helps where it is not as it must be.
    """

    what: str
    ok: bool | None
    found: str
    mend: str


class Visit:
    """A server, and the actor that it is to play.

    Args:
        config: the actor; its `served` names this server alone.
        grammar: of its chains.
        state: a text that it may be asked.
    """

    def __init__(self, config: PlayerConfig, grammar: ChainGrammar, state: str) -> None:
        self.grammar, self.state = grammar, state
        self.config = recast(config, PlayerConfig, decoding="free", max_new_tokens=8)
        self.dialect = DIALECTS[config.served.dialect]
        self.transport: Transport = transport_of(config.served)
        (self.url,) = self.transport.urls

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The actor's, as it is here."""
        from lactchain.models.loading import load_own_tokenizer

        return load_own_tokenizer(self.config)

    @cached_property
    def base(self) -> str:
        """The name that the server has for the model."""
        if not self.dialect.has_tokens:
            return self.config.model
        return common_base(self.transport, self.config.model)

    def actor(
        self, decoding: str = "free", adapter: str | None = None, **asked: Any
    ) -> ServedActor:
        """The actor without its adapter, or with the one of a name."""
        config = recast(self.config, SamplerConfig, decoding=decoding, adapter=None, **asked)
        return ServedActor(self.tokenizer, config, self.grammar, self.base, adapter)

    def first_token(self, temperature: float, seed: int) -> Reply:
        """One token, drawn at a temperature."""
        ids = self.actor().template.encode(self.state)
        end = self.tokenizer.eos_token_id
        row = Row(self.base, None, "", ids, seed, temperature, 1, end, None)
        asked = self.transport.post(self.dialect.ask, self.dialect.write(row), self.dialect.read)
        return answers([asked])[0]


def examine(config: PlayerConfig, grammar: ChainGrammar, state: str) -> Iterator[Finding]:
    """The findings of a server, as `Visit` takes it; none more of one that is not there."""
    visit = Visit(config, grammar, state)
    for what, (check, mend) in CHECKS.items():
        if not visit.dialect.has_tokens and what not in OF_TEXTS:
            continue
        try:
            ok, found = check(visit)
        except Interrupted:
            raise
        except (LactChainError, LookupError, TypeError, ValueError, RecursionError) as error:
            ok, found = False, str(error)
        yield Finding(what, ok, visit.transport.hidden(found), mend)
        if not ok and what in ("server", "answers"):
            return


Told = tuple[bool | None, str]


def _version(visit: Visit) -> Told:
    told, names = identity(visit.transport, visit.url), names_at(visit.transport, visit.url)
    version = f"version {told['version']}, " if "version" in told else ""
    return True, f"{version}serves {', '.join(sorted(names))}"


def _model(visit: Visit) -> Told:
    return True, visit.base


def _tokenizer(visit: Visit) -> Told:
    from lactchain.models.prompting import PROBES

    for text in PROBES:
        body = {"model": visit.base, "prompt": text, "add_special_tokens": False}
        try:
            told = json.loads(visit.transport.tell(visit.url, "/tokenize", body))["tokens"]
        except RefusedError:
            return None, "it has no /tokenize; each answer is checked all the same"
        here = visit.tokenizer(text, add_special_tokens=False)["input_ids"]
        if told != here:
            return False, f"{text!r} is {here} here and {told} there"
    return True, f"the same tokens for {len(PROBES)} texts"


def _answers(visit: Visit) -> Told:
    (said,) = visit.actor().act([visit.state], [1])
    tokens = f"{len(said.token_ids)} tokens, each with its log-probability"
    return True, f"{said.text!r}, {tokens if visit.dialect.has_tokens else 'text alone'}"


def _seeds(visit: Visit) -> Told:
    seeds = [5, 5, *range(100, 100 + DRAWS)]
    first, again, *others = visit.actor(temperature=HOT).act([visit.state] * len(seeds), seeds)
    distinct = len({said.text for said in others})
    same = (first.text, first.token_ids) == (again.text, again.token_ids)
    told = f"{distinct} different of {DRAWS} seeds, {'one' if same else 'two'} of one seed twice"
    agree = same and distinct == 1  # it is sure, or hears no seed
    return None if agree else same, told


def _constraints(visit: Visit) -> Told:
    said = visit.actor("constrained").act([visit.state] * 4, range(4))
    return True, ", ".join(sorted({action.text.strip() for action in said}))


def _log_probabilities(visit: Visit) -> Told:
    """Whether those of a token follow the temperature that it was drawn at."""
    by_token: list[dict[int, float]] = []
    for temperature in (1.0, HOT):
        replies = [visit.first_token(temperature, seed) for seed in range(DRAWS)]
        by_token.append({reply.token_ids[0]: reply.logprobs[0] for reply in replies})
    plain, hot = by_token
    common = plain.keys() & hot.keys()
    if not common:
        return None, f"no token was drawn both at temperature 1 and {HOT:g}"
    if max(map(abs, (*plain.values(), *hot.values()))) < SURE:
        return None, f"it is sure of its token, even at temperature {HOT:g}"
    differs = max(abs(plain[token] - hot[token]) for token in common)
    return differs > SURE, f"they differ by {differs:.2g} between temperature 1 and {HOT:g}"


def _caching(visit: Visit) -> Told:
    try:
        page = visit.transport.get(visit.url, "/metrics")
    except RefusedError:
        return None, "it has no /metrics"
    told = re.search(r'enable_prefix_caching="(\w+)"', page)
    return (None, "it does not say") if told is None else (told[1] == "True", told[1])


def _adapters(visit: Visit) -> Told:
    """Whether it takes any; and the given one, which is loaded and asked."""
    try:
        visit.transport.tell(visit.url, visit.dialect.unload, {"lora_name": ""})
    except RefusedError as error:
        if error.status == 404 or "not enabled" in str(error):
            return False, "it takes none at run time"
    if visit.config.adapter is None:
        return None, "not tried; give one as actor.adapter"
    name = adapter_name(visit.config.adapter)
    was_there = name in names_at(visit.transport, visit.url)
    load(visit.transport, visit.dialect, name, visit.config.adapter)
    try:
        visit.actor(adapter=name).act([visit.state], [1])
    finally:
        if not was_there:
            unload(visit.transport, visit.dialect, name, visit.config.adapter)
    return True, f"{name} was loaded, and answered"


def _clock(visit: Visit) -> Told:
    actor, seconds = visit.actor(), []
    for seed in range(8):
        start = time.perf_counter()
        actor.act([visit.state], [seed])
        seconds.append(time.perf_counter() - start)
    count = 4 * visit.config.served.in_flight
    start = time.perf_counter()
    actor.act([visit.state] * count, range(count))
    rate = count / (time.perf_counter() - start)
    return True, f"{1000 * median(seconds):.0f} ms alone, {rate:.0f} rows a second together"


CHECKS: dict[str, tuple[Callable[[Visit], Told], str]] = {
    "server": (_version, "start it, and give the address of the engine itself"),
    "model": (_model, "serve the model that actor.model names"),
    "tokenizer": (_tokenizer, "serve the very files of actor.model, tokenizer.json among them"),
    "answers": (_answers, "vLLM since 0.11, SGLang since 0.5.13; no proxy that rewrites requests"),
    "seeds": (_seeds, "vLLM: VLLM_BATCH_INVARIANT=1; SGLang: --enable-deterministic-inference"),
    "constraints": (_constraints, "leave structured outputs on, as they are by default"),
    "log-probabilities": (
        _log_probabilities,
        "vLLM: --logprobs-mode processed_logprobs; SGLang: no SGLANG_RETURN_ORIGINAL_LOGPROB",
    ),
    "prefix cache": (_caching, "vLLM: --enable-prefix-caching"),
    "adapters": (
        _adapters,
        "--enable-lora --max-lora-rank 64; vLLM: --max-loras 2, "
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; SGLang: --lora-target-modules all",
    ),
    "clock": (_clock, "see its log"),
}
"""What is looked at, and what helps where it is not as it must be."""

OF_TEXTS = ("answers", "seeds", "clock")
"""What can be asked of a server that knows texts alone."""
