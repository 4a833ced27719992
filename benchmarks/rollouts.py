"""How many completions per CPU-second a language policy gives: the original's way, and ours.

Prints sequences per CPU-second (one thread) of one prompt at a time through `generate`, of batched
`generate`, and of our decoder: the keys and values of the shared prefix computed once, cascade
attention, and, constrained, legal completions with jump-forward. All run in turn in one process. A
figure is the median over the repeats; ratios are medians of the ratios within a repeat.

    OMP_NUM_THREADS=1 python benchmarks/rollouts.py             # a few minutes
    OMP_NUM_THREADS=1 python benchmarks/rollouts.py --quick     # a smoke test
    OMP_NUM_THREADS=1 python benchmarks/rollouts.py --write     # appends to RESULTS_ARCHIVE.md
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from measuring import append_section, command_line, in_turns, markdown, provenance, ratio
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import GenerationConfig, MistralForCausalLM, PreTrainedTokenizerFast

from lactchain.config.settings import EnvironmentConfig
from lactchain.config.weights import TinyModelConfig
from lactchain.data.base_models import corpus
from lactchain.environments.language import make_language_env
from lactchain.functional.tokens import pad
from lactchain.models.generation.automaton import ChainAutomaton, build_automaton
from lactchain.models.generation.decoding import Decoder
from lactchain.models.prompting import PromptTemplate
from lactchain.models.tiny import (
    BOS,
    CHAT_TEMPLATE,
    CLOSE,
    EOS,
    OPEN,
    PAD,
    SPECIAL_TOKENS,
    mistral_config,
)

ALONE, BATCHED = "one at a time", "batched generate"
MOST_ALONE = 16
"""Prompts that are answered one at a time, whatever the number of environments."""

# What a user might write: 152 tokens that all prompts share.
STRATEGY = (
    "You steer a robot through a grid world. The cell (0, 0) is in the upper left corner, x grows "
    "to the right and y grows downwards. The robot faces up, right, down or left. "
    '"move forward" takes it one cell further the way it faces, and "turn left" turns it by a '
    "quarter on the spot. A move against the edge of the map or a wall changes nothing and is "
    "lost. Prefer the shortest way to the goal. Answer with a JSON list of at most "
    "{max_chain_length} moves, each one of {actions}, and with nothing else: no explanation, no "
    'second list, no other words. An answer looks like this: ["turn left", "move forward"].'
)
# The default template without the size of the world, which never changes.
TEMPLATE = (
    "The goal is at ({goal_x}, {goal_y}).\nYou are at ({x}, {y}), facing {orientation}.{feedback}"
)

Prompts = Sequence[list[int]]


class Setting:
    """Four layers of 128, a long instruction, five actions of four tokens; nothing is trained.

    Attributes:
        automaton: of legal completions, all as long as any.
        num_new_tokens: of every completion, the end of sequence left out; free ones never end.
    """

    def __init__(self) -> None:
        config = EnvironmentConfig(template=TEMPLATE, max_chain_length=5)
        env = make_language_env(config)
        self.tokenizer = _word_tokenizer([*corpus(config), STRATEGY, STRATEGY])
        self.template = PromptTemplate(self.tokenizer, STRATEGY, env.grammar)
        states = env.view_states()
        np.random.default_rng(0).shuffle(states)
        texts = [env.reset(options={"state": state})[0] for state in states[:256]]
        self.prompts = self.template.encode_batch(texts)
        self.automaton = _longest_only(build_automaton(env.grammar, self.tokenizer), self.tokenizer)
        self.num_new_tokens = self.automaton.longest - 1
        torch.manual_seed(0)
        model = MistralForCausalLM(mistral_config(TinyModelConfig(), self.tokenizer)).eval()
        model.generation_config.eos_token_id = None
        self.model = model.requires_grad_(False)

    def generated(self, prompts: Prompts) -> torch.Tensor:
        """`generate` on prompts at once, padded on the left."""
        pad_id = self.tokenizer.pad_token_id
        config = GenerationConfig(
            max_new_tokens=self.num_new_tokens, do_sample=True, top_k=0, eos_token_id=None,
            pad_token_id=pad_id,
        )  # fmt: skip
        mask = pad([[1] * len(prompt) for prompt in prompts], 0, "left")
        return self.model.generate(pad(prompts, pad_id, "left"), config, attention_mask=mask)

    def one_at_a_time(self, prompts: Prompts) -> None:
        """The original's way: `generate` on each prompt alone."""
        for prompt in prompts:
            self.generated([prompt])

    def decoded(self, constrained: bool) -> Callable[[Prompts], object]:
        """`Decoder.sample`, freely or along legal completions only."""
        decoder = Decoder(
            self.model,
            self.tokenizer.eos_token_id if constrained else -1,
            prefix_ids=self.template.prefix_ids,
            max_new_tokens=self.num_new_tokens,
            automaton=self.automaton if constrained else None,
        )
        return lambda prompts: decoder.sample(prompts, range(len(prompts)))


def _word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over words, as large models have it: an action of a list is four tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[OPEN, CLOSE],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _longest_only(automaton: ChainAutomaton, tokenizer: PreTrainedTokenizerFast) -> ChainAutomaton:
    """Forbids to end where one may go on, so that all completions have the same length.

    What follows without a choice stays what it is: the model still takes its step there.
    """
    goes_on = automaton.legal & (automaton.blocks[..., -1] != tokenizer.eos_token_id)
    legal = np.where(goes_on.any(axis=1, keepdims=True), goes_on, automaton.legal)
    return replace(automaton, legal=legal)


def report(sizes: Sequence[int], repeats: int) -> list[str]:
    """Measures all ways to answer; the lines of their table."""
    of = Setting()
    methods = {
        ALONE: of.one_at_a_time,
        BATCHED: of.generated,
        "ours, free": of.decoded(constrained=False),
        "ours, constrained": of.decoded(constrained=True),
    }
    counts = {
        (name, n): min(n, MOST_ALONE) if name == ALONE else n for name in methods for n in sizes
    }
    sides = {(name, n): partial(methods[name], of.prompts[:c]) for (name, n), c in counts.items()}
    for side in sides.values():
        side()  # warms up
    rates = {
        side: [counts[side] / seconds for seconds in taken]
        for side, taken in in_turns(sides, repeats).items()
    }
    rows = []
    for name in methods:
        medians = (statistics.median(rates[name, n]) for n in sizes)
        ratios = ([ratio(rates[name, n], rates[to, n]) for n in sizes] for to in (ALONE, BATCHED))
        rows.append([name, *map(_joined, (medians, *ratios))])
    about = (
        f"Float32, prompts of {len(of.prompts[0])} tokens of which {len(of.template.prefix_ids)} "
        f"are shared, {of.num_new_tokens} new tokens. Environments: {_joined(sizes)}."
    )
    heads = ["", "sequences/CPU-s", f"× {ALONE}", f"× {BATCHED}"]
    return [about, "", *markdown(heads, rows)]


def _joined(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="few environments, one repeat")
    parser.add_argument("--repeats", type=int, default=5, help="of every measurement")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, repeats = ((4, 16), 1) if arguments.quick else ((16, 64, 256), arguments.repeats)
    found = report(sizes, repeats)
    print(provenance(), *found, sep="\n")
    if arguments.write:
        append_section("Rollouts", found)


if __name__ == "__main__":
    main()
