"""Asks servers that are to generate what they are, and says what has to be mended.

Reads the tokenizer of --actor.model, and --actor.adapter if given, which is loaded for a moment;
writes nothing. It ends with exit code 8 where something is not as it must be.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from lactchain.config.settings import (
    EnvironmentConfig,
    PlayerConfig,
    SamplerConfig,
    ServedConfig,
    recast,
)
from lactchain.environments.language import make_language_env
from lactchain.errors import Interrupted, LactChainError, ServerError
from lactchain.runs.console import console, plain
from lactchain.runs.process import is_dry_run
from lactchain.stages.stage_run import NOTHING_DONE
from lactchain.types import ChainGrammar
from lactchain_extras.serving.dialects import DIALECTS, Request, Response
from lactchain_extras.serving.policy import ServedActor
from lactchain_extras.serving.servers import (
    adapter_name,
    common_base,
    identity,
    load,
    names_at,
    unload,
)
from lactchain_extras.serving.transport import RefusedError, answers, hidden, transport_of

MARKS = {True: "well", False: "AMISS", None: "unknown"}
HOT = 4.0  # a temperature at which probabilities are plainly others
DRAWS = 16
SURE = 1e-4  # a log-probability nearer to 0 is that of a token which nothing else competes with


@dataclass(frozen=True)
class DoctorConfig:
    """A server, or those of `actor.served`."""

    url: str | None = None
    """Its address; null: those of `actor.served`, each by itself."""
    dialect: Literal["vllm", "sglang", "text"] = "vllm"
    """How it is spoken to, with `url`."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The world whose states it is asked about, and whose chains it is held to."""
    actor: PlayerConfig = PlayerConfig()
    """The actor that it is to play."""

    def __post_init__(self) -> None:
        if self.url is not None:
            ServedConfig([self.url])
        elif self.actor.served is None:
            raise ValueError("url: expected an address, or actor.served, got neither")


@dataclass(frozen=True)
class Finding:
    """What was found of one thing; `ok` is None where the server does not tell."""

    what: str
    ok: bool | None
    found: str
    mend: str


def main(config: DoctorConfig) -> list[Finding]:
    """Prints the findings of each server; `ServerError` where something is amiss."""
    if is_dry_run():
        console.print(NOTHING_DONE)
        return []
    found: list[Finding] = []
    env, served = make_language_env(config.environment), config.actor.served
    state, _ = env.reset(seed=0)
    if config.url is not None:
        served = ServedConfig([config.url], config.dialect, timeout_seconds=20.0)
    for url in served.urls:  # each by itself
        console.print(plain(url), soft_wrap=True)
        actor = replace(config.actor, served=replace(served, urls=[url]))
        for finding in examine(actor, env.grammar, state):
            found.append(finding)
            mend = f"; {finding.mend}" if finding.ok is False else ""
            line = f"  {finding.what:18}{MARKS[finding.ok]:8} {finding.found}{mend}"
            console.print(plain(line), soft_wrap=True)
    if amiss := [finding.what for finding in found if finding.ok is False]:
        failed = f"{len(amiss)} did not ({', '.join(amiss)}); each line above says what helps"
        raise ServerError(f"doctor: expected all of {len(found)} checks to pass, {failed}")
    return found


class Visit:
    """A server, by an actor whose `served` names it alone, and a text that it may be asked."""

    def __init__(self, config: PlayerConfig, grammar: ChainGrammar, state: str) -> None:
        from lactchain.models.loading import load_own_tokenizer

        self.grammar, self.state = grammar, state
        self.config = recast(config, PlayerConfig, decoding="free", max_new_tokens=8)
        self.dialect, self.transport = DIALECTS[config.served.dialect], transport_of(config.served)
        self.tokenizer, self.base = load_own_tokenizer(config), config.model
        (self.url,) = self.transport.urls

    def actor(
        self, decoding: str = "free", adapter: str | None = None, **asked: Any
    ) -> ServedActor:
        """The actor without its adapter, or with the one of a name."""
        config = recast(self.config, SamplerConfig, decoding=decoding, adapter=None, **asked)
        return ServedActor(self.tokenizer, config, self.grammar, self.base, adapter)

    def first_token(self, temperature: float, seed: int) -> Response:
        """One token, drawn at a temperature."""
        ids, end = self.actor().template.encode(self.state), self.tokenizer.eos_token_id
        request = Request(self.base, None, "", ids, seed, temperature, 1, end, None)
        ask, body, read = self.dialect.ask, self.dialect.write(request), self.dialect.read
        return answers([self.transport.post(ask, body, read)])[0]


def examine(config: PlayerConfig, grammar: ChainGrammar, state: str) -> Iterator[Finding]:
    """The findings of a server, as `Visit` takes it; none more of one that is not there."""
    visit = Visit(config, grammar, state)
    for what, (check, mend) in CHECKS.items():
        if not visit.dialect.has_tokens and what not in ("answers", "seeds"):
            continue
        try:
            ok, found = check(visit)
        except Interrupted:
            raise
        except (LactChainError, LookupError, TypeError, ValueError, RecursionError) as error:
            ok, found = False, str(error)
        yield Finding(what, ok, hidden(found), mend)
        if not ok and what in ("server", "answers"):
            return


Outcome = tuple[bool | None, str]


def _server(visit: Visit) -> Outcome:
    version = identity(visit.transport, visit.url).get("version", "unknown")
    return True, f"version {version}, serves {', '.join(names_at(visit.transport, visit.url))}"


def _model(visit: Visit) -> Outcome:
    visit.base = common_base(visit.transport, visit.config.model)
    return True, visit.base


def _tokenizer(visit: Visit) -> Outcome:
    from lactchain.models.prompting import PROBES

    for text in PROBES:
        body = {"model": visit.base, "prompt": text, "add_special_tokens": False}
        try:
            there = json.loads(visit.transport.tell(visit.url, "/tokenize", body))["tokens"]
        except RefusedError:
            return None, "it has no /tokenize; each answer is checked all the same"
        here = visit.tokenizer(text, add_special_tokens=False)["input_ids"]
        if there != here:
            return False, f"{text!r} is {here} here and {there} there"
    return True, f"the same tokens for {len(PROBES)} texts"


def _answers(visit: Visit) -> Outcome:
    (answer,) = visit.actor().act([visit.state], [1])
    tokens = f"{len(answer.token_ids)} tokens, each with its log-probability"
    return True, f"{answer.text!r}, {tokens if visit.dialect.has_tokens else 'text alone'}"


def _seeds(visit: Visit) -> Outcome:
    seeds = [5, 5, *range(100, 100 + DRAWS)]
    first, again, *others = visit.actor(temperature=HOT).act([visit.state] * len(seeds), seeds)
    same, distinct = first.text == again.text, len({answer.text for answer in others})
    found = f"{distinct} different of {DRAWS} seeds, {'one' if same else 'two'} of one seed twice"
    return None if same and distinct == 1 else same, found  # it is sure, or hears no seed


def _constraints(visit: Visit) -> Outcome:
    answers = visit.actor("constrained").act([visit.state] * 4, range(4))
    return True, ", ".join(sorted({action.text.strip() for action in answers}))


def _log_probabilities(visit: Visit) -> Outcome:
    """Whether those of a token follow the temperature that it was drawn at."""
    by_token: list[dict[int, float]] = []
    for temperature in (1.0, HOT):
        replies = [visit.first_token(temperature, seed) for seed in range(DRAWS)]
        by_token.append({reply.token_ids[0]: reply.logprobs[0] for reply in replies})
    plain, hot = by_token
    common = plain.keys() & hot.keys()
    if not common or max(map(abs, (*plain.values(), *hot.values()))) < SURE:
        return None, f"it is sure of its token, or none was drawn at 1 and at {HOT:g}"
    differs = max(abs(plain[token] - hot[token]) for token in common)
    return differs > SURE, f"they differ by {differs:.2g} between temperature 1 and {HOT:g}"


def _adapters(visit: Visit) -> Outcome:
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


CHECKS: dict[str, tuple[Callable[[Visit], Outcome], str]] = {
    "server": (_server, "start it, and give the address of the engine itself"),
    "model": (_model, "serve the model that actor.model names"),
    "tokenizer": (_tokenizer, "serve the very files of actor.model, tokenizer.json among them"),
    "answers": (_answers, "vLLM since 0.11, SGLang since 0.5.13; no proxy that rewrites requests"),
    "seeds": (_seeds, "vLLM: VLLM_BATCH_INVARIANT=1; SGLang: --enable-deterministic-inference"),
    "constraints": (_constraints, "leave structured outputs on, as they are by default"),
    "log-probabilities": (
        _log_probabilities,
        "vLLM: --logprobs-mode processed_logprobs; SGLang: no SGLANG_RETURN_ORIGINAL_LOGPROB",
    ),
    "adapters": (
        _adapters,
        "--enable-lora --max-lora-rank 64; vLLM: --max-loras 2, "
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; SGLang: --lora-target-modules all",
    ),
}
"""What is looked at, and what helps where it is not as it must be."""
