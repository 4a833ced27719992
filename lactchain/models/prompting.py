"""From a strategy and an observation to the tokens of a prompt.

The strategy comes first and the observation last, so that all prompts of a run share a long prefix
of tokens, whose keys and values are computed once (`PromptTemplate.prefix_ids`). How a state
becomes the observation's text is the world's template (`environments.views.TextView.text`); how
both become a conversation is the chat template of the model's tokenizer.
"""

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from lactchain.config.strategies import resolve_strategy
from lactchain.errors import DataError
from lactchain.types import Action, ChainGrammar, Conversation

# Stands for the observation while the chat template is rendered.
_SLOT = "LACTCHAIN-OBSERVATION-SLOT"

# Templates that write the date take this one: the prompts of a run are the same tomorrow.
_TODAY = datetime(2024, 7, 26)
_DATE = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")

RENDER_SECONDS = 20.0
"""Of a chat template, which takes milliseconds."""

NO_NAMES = ChainGrammar(())

# Observations of all kinds, to check a way of tokenising against the tokenizer's own.
PROBES = ("x", " x", "2 3 up 1 0", "At (2, 3).", "\nline", "", " ", "[1]", '"quoted"', "é漢🙂")


class PromptTemplate:
    """Turns observations into prompts for one tokenizer and one strategy.

    A prompt is three runs of tokens: `prefix_ids`, the same for every observation; the tokens of
    the variable text; and what the chat template closes the turn with. Special tokens stand only
    in the first and the last: the text of one inside an observation (`</s>`, say) is encoded as the
    plain characters that it is, and cannot end a turn.

    Args:
        tokenizer: a fast one with a chat template.
        strategy: a name of `STRATEGIES`, or the text itself.
        grammar: what the strategy names the actions of.

    Raises:
        DataError: the tokenizer has no chat template, loses the observation in it, or cannot
            encode special tokens as plain text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        strategy: str = "none",
        grammar: ChainGrammar = NO_NAMES,
    ) -> None:
        self.strategy = resolve_strategy(strategy, grammar.action_names, grammar.max_chain_length)
        self._tokenizer = tokenizer
        self._before, self._after, self._trimmed = _around_text(tokenizer, self.strategy)
        # A copy that reads the text of special tokens as plain text; the original keeps its state.
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._plain.no_padding()
        self._plain.no_truncation()
        self._fit(tokenizer)

    def render(self, observation: str) -> str:
        """The prompt as text, for people and for datasets; tokens come from `encode`."""
        return f"{self._before}{self._trimmed(observation)}{self._after}"

    def encode(self, observation: str) -> list[int]:
        """The token ids of the prompt for one observation."""
        return self.encode_batch([observation])[0]

    def encode_batch(self, observations: Sequence[str | Conversation]) -> list[list[int]]:
        """Token ids of B prompts; a conversation, whatever instruction it has, is one itself."""
        shown = (encodable(self._trimmed(text)) for text in observations if isinstance(text, str))
        texts = [f"{self._lead}{text}{self._tail}" for text in shown]
        encodings = iter(self._plain.encode_batch_fast(texts, add_special_tokens=False))
        return [
            [*self.prefix_ids, *next(encodings).ids[self._num_anchor_ids :], *self._suffix_ids]
            if isinstance(text, str)
            else self._encode_conversation(text)
            for text in observations
        ]

    def check_untemplated(
        self, asked: Iterable[tuple[str | Conversation, Action]], source: str
    ) -> None:
        """Raises `DataError` if texts of others come with the chat template around them already.

        A second one would be put around them. Completions that were sampled here are left out.
        """
        specials = _special_texts(self._tokenizer)
        opening = next((s for s in specials if self._before.lstrip().startswith(s)), None)
        closing = end_of_completion(self._tokenizer)
        for number, (prompt, action) in enumerate(asked):
            opens = opening and isinstance(prompt, str) and prompt.lstrip().startswith(opening)
            closes = closing and action.text.rstrip().endswith(closing)
            if not action.token_ids and (opens or closes):
                raise DataError(
                    f"{source}: row {number}: expected texts without the chat template, got some "
                    f"that begin with {opening} or end with {closing}; give prompts as "
                    "conversations, or the texts alone"
                )

    def encode_next(self, observation: str) -> list[int]:
        """The tokens between a completion, with its end, and the next one, as the talk goes on."""
        before, after = self._between_turns
        shown = encodable(self._trimmed_alone(observation))
        text = self._plain.encode(shown, add_special_tokens=False).ids
        return [*_ids(self._tokenizer, before), *text, *_ids(self._tokenizer, after)]

    @cached_property
    def _between_turns(self) -> tuple[str, str]:
        """What the chat template writes before and after the user's second text."""
        answer = {"role": "assistant", "content": _SLOT}
        turns = [{"role": "user", "content": "-"}, answer, {"role": "user", "content": _SLOT}]
        text = render_asked(self._tokenizer, turns)
        _, before, after = text.split(_SLOT)
        return before.lstrip().removeprefix(end_of_completion(self._tokenizer)), after

    @cached_property
    def _trimmed_alone(self) -> Callable[[str], str]:
        """What the chat template takes off a message that nothing is put before."""
        return _around_text(self._tokenizer, "")[2]

    def _encode_conversation(self, messages: Conversation) -> list[int]:
        contents = [message["content"] for message in messages]
        if not any(s in content for s in _special_texts(self._tokenizer) for content in contents):
            return _ids(self._tokenizer, self._rendered(messages))
        slots = [{**m, "content": f"{_SLOT}-{number}-"} for number, m in enumerate(messages)]
        ids: list[int] = []
        for piece in re.split(rf"({_SLOT}-\d+-)", self._rendered(slots)):
            if not piece.startswith(_SLOT):
                ids += _ids(self._tokenizer, piece)
                continue
            content = encodable(self._trimmed_alone(contents[int(piece.split("-")[-2])]))
            ids += self._plain.encode(content, add_special_tokens=False).ids
        return ids

    def _rendered(self, messages: Conversation) -> str:
        try:
            return render_asked(self._tokenizer, messages)
        except TemplateError as error:
            roles = [message.get("role") for message in messages]
            raise DataError(
                f"tokenizer {self._tokenizer.name_or_path}: its chat template refuses a "
                f"conversation of the roles {roles} ({error}); correct the roles"
            ) from error

    def _fit(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Finds the latest place to cut the prompt where the pieces give the tokens of the whole.

        The candidates: before the white space at the end of the constant text, which byte-level
        BPE glues to the next word; after the last special token; and both again behind a line
        break that is taken away afterwards, since some tokenizers put a space before any text.
        """
        before, after = self._before, self._after
        specials = _special_texts(tokenizer)
        start = max((before.rfind(s) + len(s) for s in specials if s in before), default=0)
        end = min((after.find(s) for s in specials if s in after), default=len(after))
        self._tail = after[:end]
        self._suffix_ids = _ids(tokenizer, after[end:])
        for cut in (max(start, len(before.rstrip())), start):
            for anchor in ("", "\n"):
                self.prefix_ids = _ids(tokenizer, before[:cut])
                self._lead = anchor + before[cut:]
                self._num_anchor_ids = len(self._plain.encode(anchor, add_special_tokens=False))
                if all(self.encode(text) == _ids(tokenizer, self.render(text)) for text in PROBES):
                    return
        raise DataError(
            f"tokenizer {tokenizer.name_or_path}: a prompt in pieces does not give the tokens of "
            "the whole prompt; use a tokenizer without text normalisation"
        )


def _around_text(
    tokenizer: PreTrainedTokenizerBase, strategy: str
) -> tuple[str, str, Callable[[str], str]]:
    """What stands before and after an observation, and what the template takes off its ends."""
    before, after = _render_around_slot(tokenizer, strategy, _SLOT)
    spaced_before, spaced_after = _render_around_slot(tokenizer, strategy, f" \n{_SLOT} \n")
    starts, ends = spaced_before == before, spaced_after == after
    trims = {(True, True): str.strip, (True, False): str.lstrip, (False, True): str.rstrip}
    return before, after, trims.get((starts, ends), str)


def _render_around_slot(
    tokenizer: PreTrainedTokenizerBase, strategy: str, shown: str
) -> tuple[str, str]:
    """The texts before and after the observation, the strategy as system text where that exists."""
    user = {"role": "user", "content": shown}
    joined = {"role": "user", "content": f"{strategy}\n\n{shown}"}
    arrangements = [[{"role": "system", "content": strategy}, user], [joined]]
    for messages in arrangements if strategy else [[user]]:
        try:
            text = render_asked(tokenizer, messages)
        except TemplateError:  # this template knows no system role
            continue
        if text.count(_SLOT) == 1 and strategy.strip() in text.partition(_SLOT)[0]:
            before, _, after = text.partition(_SLOT)
            if after.rstrip().endswith("<think>"):
                raise DataError(
                    f"tokenizer {tokenizer.name_or_path}: expected a chat template that lets the "
                    "model answer at once, and it opens every completion with <think>; use the "
                    "model without thinking"
                )
            return before, after
    raise DataError(
        f"tokenizer {tokenizer.name_or_path}: expected its chat template to show the system text "
        "and the user's text once each, in this order, and it does not"
    )


def render_asked(tokenizer: PreTrainedTokenizerBase, messages: Conversation) -> str:
    """A conversation that the model goes on with: by the chain, with no thoughts before it."""
    return render(tokenizer, messages, add_generation_prompt=True, enable_thinking=False)


def render(tokenizer: PreTrainedTokenizerBase, messages: Conversation, **options: Any) -> str:
    """A conversation as the tokenizer's chat template, a sandboxed program, writes it.

    A sandbox sets its loops no end, so that it has `RENDER_SECONDS`. `TemplateError` if it refuses
    the conversation; `DataError` if there is none, it fails in another way, or does not end.
    """
    if tokenizer.chat_template is None:
        raise DataError(
            f"tokenizer {tokenizer.name_or_path}: expected a chat template, got none; use an "
            "instruction-tuned model, or put a chat_template.jinja into the model's folder"
        )
    template = _DATE.sub(lambda call: repr(_TODAY.strftime(call[2])), tokenizer.get_chat_template())
    options |= {"chat_template": template, "tokenize": False}
    rendered: Future[str] = Future()

    def work() -> None:
        try:
            rendered.set_result(tokenizer.apply_chat_template(list(messages), **options))
        except Exception as error:  # noqa: BLE001  - whatever the template does
            rendered.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return rendered.result(RENDER_SECONDS)
    except TemplateError:
        raise
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {error}" if str(error) else "it does not end"
        raise DataError(
            f"tokenizer {tokenizer.name_or_path}: its chat template fails ({reason}); use another "
            "model, or mend the template"
        ) from error


def end_of_completion(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The special token that the chat template closes a completion with; else the end of a text.

    Models are trained to say this one, which for Gemma and Phi 3 is another.
    """
    answered = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _SLOT}]
    try:
        text = render(tokenizer, answered)
    except TemplateError:  # a template that shows no completions
        return tokenizer.eos_token
    _, completion, after = text.partition(_SLOT)
    places = {after.find(token): token for token in _special_texts(tokenizer) if token in after}
    return places[min(places)] if completion and places else tokenizer.eos_token


def _special_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a rendered prompt: its special tokens are read as such, and none is added."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]


def encode_completions(
    completions: Sequence[Action],
    tokenizer: PreTrainedTokenizerBase,
    name: Callable[[int], str] = "completion {}".format,
) -> list[list[int]]:
    """Token ids of completions: those that were sampled, or else those of the text.

    In a text, special tokens are plain characters, and the end-of-sequence token is added; an empty
    text stays empty. `DataError`, which calls a completion by the `name` of its number, if sampled
    ids do not read as the text: another tokenizer's model sampled them.
    """
    sampled: dict[tuple[tuple[int, ...], str], int] = {}
    for number, completion in enumerate(completions):
        if completion.token_ids:
            sampled.setdefault((completion.token_ids, completion.text), number)
    # The text is what the ids were decoded to, canonical or not: so it still is. Some 20 μs each.
    for (ids, text), number in sampled.items():
        reading = reading_of(ids, tokenizer)
        if reading != text:
            problem = f"its tokens read {reading!r}, its text is {text!r}"
        elif max(ids) >= len(tokenizer):  # decoding passes over it
            problem = f"its token {max(ids)} is none of the {len(tokenizer)} of actor.model"
        else:
            continue
        raise DataError(
            f"{name(number)}: {problem}; a model with another tokenizer sampled it: give that "
            "one as actor.model, make the data anew with this one, or leave out the token "
            "ids, so that texts are encoded"
        )
    texts = list(dict.fromkeys(a.text for a in completions if a.text and not a.token_ids))
    encoded = {"": []}
    if texts:
        plain = list(map(encodable, texts))
        ids = tokenizer(plain, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        encoded |= {t: [*row, tokenizer.eos_token_id] for t, row in zip(texts, ids, strict=True)}
    return [list(a.token_ids) or encoded[a.text] for a in completions]


def reading_of(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """What the tokens of a completion read as, without its end; other special tokens show."""
    ended = token_ids[-1:] == (tokenizer.eos_token_id,)
    return tokenizer.decode(token_ids[:-1] if ended else token_ids)


def encodable(text: str) -> str:
    """Replaces lone surrogates, which no tokenizer can encode, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
