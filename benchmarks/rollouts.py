"""How many completions per CPU-second a language policy gives: the original's way, and ours.

Prints sequences per CPU-second (`time.process_time`, one thread) of one prompt at a time through
`generate`, of batched `generate`, and of each step of our recipe: the keys and values of the shared
prefix computed once, cascade attention, legal completions with jump-forward, bfloat16. All sides
run in turn in one process, and a figure is the median over the repeats; ratios are medians of the
ratios within a repeat.

The bound is what the machine's own matrix products allow: peak / (2 x body parameters x tokens)
sequences per second, where the peak is measured in the same run for the same dtype, the body is
the layers without embedding and head, and tokens are those that a row has to feed: its prompt (less
the shared prefix where that is cached) and all new tokens but the last.

    OMP_NUM_THREADS=1 python benchmarks/rollouts.py             # a few minutes
    OMP_NUM_THREADS=1 python benchmarks/rollouts.py --quick     # a smoke test
    OMP_NUM_THREADS=1 python benchmarks/rollouts.py --write     # appends to RESULTS_ARCHIVE.md
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    DynamicCache,
    GenerationConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from lactchain.config.parsing import parse
from lactchain.config.settings import EnvironmentConfig
from lactchain.config.weights import TinyModelConfig
from lactchain.data.base_models import corpus
from lactchain.environments.language import make_language_env
from lactchain.models.generation.automaton import ChainAutomaton, build_automaton
from lactchain.models.generation.cascade import prefix_keys_values
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
    build_tiny_tokenizer,
    mistral_config,
)
from lactchain.stages.pipeline_config import RunPipelineConfig

ROOT = Path(__file__).parent.parent
PRESET = ROOT / "configs/run_pipeline/tiny.yaml"

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
Method = Callable[[Prompts], object]


@dataclass(frozen=True)
class Setting:
    """A model's shape and the prompts it is given.

    Attributes:
        num_new_tokens: of every free completion, the end of sequence left out.
        automaton: of legal completions, all of that many tokens and the end of sequence.
    """

    name: str
    shape: TinyModelConfig
    tokenizer: PreTrainedTokenizerFast
    template: PromptTemplate
    prompts: Prompts
    automaton: ChainAutomaton
    num_new_tokens: int

    def model(self, dtype: torch.dtype) -> MistralForCausalLM:
        """An untrained model; its free completions never end by themselves."""
        torch.manual_seed(0)
        model = MistralForCausalLM(mistral_config(self.shape, self.tokenizer)).to(dtype).eval()
        model.generation_config.eos_token_id = None
        return model.requires_grad_(False)


def long_setting() -> Setting:
    """Four layers of 128, a long instruction, five actions of four tokens."""
    environment = EnvironmentConfig(template=TEMPLATE, max_chain_length=5)
    texts = [*corpus(environment), STRATEGY, STRATEGY]
    return _setting("4 x 128", TinyModelConfig(), environment, _word_tokenizer(texts), STRATEGY)


def short_setting() -> Setting:
    """The preset of the quickstart: two layers of 64, short prompts, one token an action."""
    preset = parse(RunPipelineConfig, ["--config", str(PRESET)])
    tokenizer = build_tiny_tokenizer(corpus(preset.environment), preset.tiny.vocab_size)
    return _setting("2 x 64", preset.tiny, preset.environment, tokenizer, preset.actor.strategy)


def _setting(
    name: str,
    shape: TinyModelConfig,
    environment: EnvironmentConfig,
    tokenizer: PreTrainedTokenizerFast,
    strategy: str,
) -> Setting:
    env = make_language_env(environment)
    template = PromptTemplate.for_grammar(tokenizer, strategy, env.grammar)
    states = env.view_states()
    np.random.default_rng(0).shuffle(states)
    observations = [env.reset(options={"state": state})[0] for state in states[:256]]
    automaton = _longest_only(build_automaton(env.grammar, tokenizer), tokenizer)
    prompts = template.encode_batch(observations)
    return Setting(name, shape, tokenizer, template, prompts, automaton, automaton.longest - 1)


def _word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over words, as large models have it: an action of a list is four tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
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
    ends = automaton.blocks[..., -1] == tokenizer.eos_token_id
    goes_on = automaton.legal & ~ends
    return replace(
        automaton, legal=np.where(goes_on.any(axis=1, keepdims=True), goes_on, automaton.legal)
    )


def one_at_a_time(setting: Setting, model: MistralForCausalLM) -> Method:
    """The original's way: `generate` on each prompt alone."""
    config = _generation_config(setting)

    def run(prompts: Prompts) -> list[torch.Tensor]:
        return [model.generate(torch.tensor([prompt]), config) for prompt in prompts]

    return run


def batched(setting: Setting, model: MistralForCausalLM) -> Method:
    """`generate` on all prompts at once, padded on the left."""
    config, pad = _generation_config(setting), setting.tokenizer.pad_token_id

    def run(prompts: Prompts) -> torch.Tensor:
        ids, mask = _left_padded(prompts, pad)
        return model.generate(ids, config, attention_mask=mask)

    return run


def prefix_once(setting: Setting, model: MistralForCausalLM) -> Method:
    """Batched `generate` that is handed the keys and values of the shared prefix."""
    config, pad = _generation_config(setting), setting.tokenizer.pad_token_id
    prefix = setting.template.prefix_ids
    keys_values = prefix_keys_values(model, prefix)

    def run(prompts: Prompts) -> torch.Tensor:
        count = len(prompts)
        ids, mask = _left_padded([prompt[len(prefix) :] for prompt in prompts], pad)
        shared = torch.tensor([prefix]).expand(count, -1)
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(keys_values[:, :, None]):
            cache.update(keys.expand(count, -1, -1, -1), values.expand(count, -1, -1, -1), layer)
        return model.generate(
            torch.cat([shared, ids], dim=1),
            config,
            attention_mask=torch.cat([torch.ones_like(shared), mask], dim=1),
            past_key_values=cache,
        )

    return run


def ours(setting: Setting, model: MistralForCausalLM, constrained: bool) -> Method:
    """`Decoder.sample`, freely or along legal completions only."""
    decoder = Decoder(
        model,
        setting.tokenizer.eos_token_id if constrained else -1,
        prefix_ids=setting.template.prefix_ids,
        max_new_tokens=setting.num_new_tokens,
        automaton=setting.automaton if constrained else None,
    )

    def run(prompts: Prompts) -> list:
        return decoder.sample(prompts, range(len(prompts)))

    return run


def allowed_tokens(setting: Setting, model: MistralForCausalLM) -> Method:
    """Batched `generate` along the same legal completions, by `prefix_allowed_tokens_fn`."""
    config, pad = _generation_config(setting), setting.tokenizer.pad_token_id
    followers: dict[tuple[int, ...], list[int]] = {}
    for completion in _all_completions(setting.automaton):
        for place, token in enumerate(completion):
            options = followers.setdefault(completion[:place], [])
            if token not in options:
                options.append(token)

    def run(prompts: Prompts) -> torch.Tensor:
        ids, mask = _left_padded(prompts, pad)
        start = ids.shape[1]
        return model.generate(
            ids,
            config,
            attention_mask=mask,
            prefix_allowed_tokens_fn=lambda _, said: followers[tuple(said[start:].tolist())],
        )

    return run


def _all_completions(automaton: ChainAutomaton) -> list[tuple[int, ...]]:
    completions, open_paths = [], [(automaton.opening, automaton.start)]
    while open_paths:
        path, state = open_paths.pop()
        for column in np.flatnonzero(automaton.legal[state]):
            block = automaton.blocks[state, column]
            longer = path + tuple(block[block >= 0].tolist())
            after = automaton.after[state, column]
            completions.append(longer) if after < 0 else open_paths.append((longer, after))
    return completions


def _generation_config(setting: Setting) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=setting.num_new_tokens,
        do_sample=True,
        top_k=0,
        eos_token_id=None,
        pad_token_id=setting.tokenizer.pad_token_id,
    )


def _left_padded(prompts: Prompts, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


@torch.inference_mode()
def peak_flops(dtype: torch.dtype) -> float:
    """Floating-point operations per CPU-second of the best of many square matrix products."""
    best = 0.0
    for size in (512, 768, 1024, 1536):
        a, b = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
        out = a @ b
        for _ in range(12):
            best = max(
                best, 2 * size**3 / cpu_seconds(lambda a=a, b=b, o=out: torch.mm(a, b, out=o))
            )
    return best


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU time of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def bound(setting: Setting, model: MistralForCausalLM, peak: float, prefix_cached: bool) -> float:
    """Sequences per second if nothing but the body's matrix products took time, at their peak."""
    body = sum(parameter.numel() for parameter in model.get_decoder().layers.parameters())
    fed = statistics.mean(map(len, setting.prompts)) + setting.num_new_tokens - 1
    fed -= len(setting.template.prefix_ids) if prefix_cached else 0
    return peak / (2 * body * fed)


METHODS = {
    "one at a time": lambda setting, model: one_at_a_time(setting, model),
    "batched generate": lambda setting, model: batched(setting, model),
    "+ prefix once": lambda setting, model: prefix_once(setting, model),
    "+ cascade (ours, free)": lambda setting, model: ours(setting, model, constrained=False),
    "+ jump-forward (ours, constrained)": lambda setting, model: ours(setting, model, True),
    "generate, prefix_allowed_tokens_fn": lambda setting, model: allowed_tokens(setting, model),
}
ONE, BATCHED, *_, LAST = METHODS
UNCACHED = (ONE, BATCHED, LAST)


def measure(
    setting: Setting, dtypes: Sequence[torch.dtype], sizes: Sequence[int], repeats: int
) -> dict[tuple[torch.dtype, str, int], list[float]]:
    """Sequences per CPU-second of every method, dtype and number of environments, per repeat.

    One at a time does not depend on that number: it is measured beside each, on 16 prompts.
    """
    models = {dtype: setting.model(dtype) for dtype in dtypes}
    runs = {
        (dtype, name): make(setting, model)
        for dtype, model in models.items()
        for name, make in METHODS.items()
    }
    rates: dict[tuple[torch.dtype, str, int], list[float]] = {}
    for repeat, size in itertools.product(range(repeats + 1), sizes):
        for (dtype, name), run in runs.items():
            if name == LAST and size != sizes[0]:
                continue
            prompts = setting.prompts[: min(size, 16) if name == ONE else size]
            rate = len(prompts) / cpu_seconds(lambda run=run, prompts=prompts: run(prompts))
            if repeat:  # the first round warms up
                rates.setdefault((dtype, name, size), []).append(rate)
    return rates


def report(
    setting: Setting, dtypes: Sequence[torch.dtype], sizes: Sequence[int], repeats: int
) -> str:
    """Measures one setting; returns its markdown table."""
    peaks = {dtype: peak_flops(dtype) for dtype in dtypes}
    rates = measure(setting, dtypes, sizes, repeats)
    peaks = {dtype: max(peak, peak_flops(dtype)) for dtype, peak in peaks.items()}
    model = setting.model(torch.float32)
    total = sum(parameter.numel() for parameter in model.parameters())
    body = sum(parameter.numel() for parameter in model.get_decoder().layers.parameters())
    lengths = sorted(map(len, setting.prompts))
    columns = " / ".join(map(str, sizes))
    lines = [
        f"**{setting.name}**: {total:,} parameters ({body:,} in the body), prompts of {lengths[0]} "
        f"to {lengths[-1]} tokens (mean {statistics.mean(lengths):.0f}) of which "
        f"{len(setting.template.prefix_ids)} are shared, {setting.num_new_tokens} new tokens. "
        f"Environments: {columns}. Peak: "
        + ", ".join(f"{_name(dtype)} {peak / 1e9:.0f} GFLOP/s" for dtype, peak in peaks.items())
        + ".",
        "",
        "| dtype | method | sequences/CPU-s | × one at a time | × the same, fp32 "
        "| × batched generate | share of its bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype, name in itertools.product(dtypes, METHODS):
        measured = [size for size in sizes if (dtype, name, size) in rates]
        limit = bound(setting, model, peaks[dtype], name not in UNCACHED)

        def ratios(to_dtype: torch.dtype, to: str, *row) -> str:
            dtype, name, measured = row
            return _joined(
                _ratio(rates[dtype, name, size], rates[to_dtype, to, size]) for size in measured
            )

        row = (dtype, name, measured)
        medians = [statistics.median(rates[dtype, name, size]) for size in measured]
        lines.append(
            f"| {_name(dtype)} | {name} | {_joined(medians)} | {ratios(dtype, ONE, *row)} "
            f"| {ratios(dtypes[0], ONE, *row)} | {ratios(dtype, BATCHED, *row)} "
            f"| {' / '.join(f'{median / limit:.0%}' for median in medians)} |"
        )
    return "\n".join(lines) + "\n"


def _ratio(rates: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(rates, base, strict=True))


def _joined(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]


def has_fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx512_bf16" in cpuinfo.read_text()


def provenance() -> str:
    """When, from which source, on what, and by which command the figures were measured."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "lactchain", "benchmarks"])
    commit = commit.stdout.strip() + ("+" if changed.returncode else "")
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    machine = f"{len(models)} x {models[0]}" if models else platform.processor()
    features = "with" if has_fast_bfloat16() else "without"
    return (
        f"{datetime.date.today()}, commit {commit}, {machine} ({features} avx512_bf16), one "
        f"thread, torch {torch.__version__}: `python {shlex.join(sys.argv)}`\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few environments, one repeat")
    parser.add_argument("--repeats", type=int, default=5, help="of every measurement")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, repeats = ((4, 16), 1) if arguments.quick else ((16, 64, 256), arguments.repeats)
    dtypes = [torch.float32] + [torch.bfloat16] * has_fast_bfloat16()
    parts = [provenance()]
    print(parts[0])
    for make in (long_setting, short_setting):
        parts.append(report(make(), dtypes, sizes, repeats))
        print(parts[-1], flush=True)
    if arguments.write:
        with (ROOT / "benchmarks/RESULTS_ARCHIVE.md").open("a", encoding="utf-8") as results:
            results.write("\n## Rollouts\n\n" + "\n".join(parts))


if __name__ == "__main__":
    main()
