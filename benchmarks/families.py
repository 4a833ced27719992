"""Which families of language models answer and are trained as their own code does.

Each family is built at small width with random weights in float32, together with a tokenizer that
has its chat template, and what is computed here is held against the library's own forward pass and
`generate`. With `--write` the result becomes the table in docs/model_families.md.
"""

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime

import torch
from family_models import FAMILIES, Family, build_model, build_tokenizer
from jinja2 import TemplateError
from measuring import ROOT, markdown, put_between
from torch import Tensor
from transformers import PreTrainedModel

from lactchain.errors import ConfigError
from lactchain.models.attention import check_family, finished_logits
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.generation.decoding import Decoder
from lactchain.models.prompting import PromptTemplate, end_of_completion
from lactchain.trainers.simpo import CHOSEN, REJECTED, PreferenceCollator, completion_logprobs
from lactchain.types import ChainGrammar
from lactchain_extras.token_values.model import ValueMeaning, ValueModel
from lactchain_extras.token_values.trees import prefix_trees

PAGE = ROOT / "docs/model_families.md"
HEADER = ("Family", "`model_type`", "Free", "Constrained", "SimPO", "Values", "Prompts", "Notes")
BEGIN, END = "<!-- made by benchmarks/families.py -->", "<!-- end -->"

GRAMMAR = ChainGrammar(("go", "turn"), max_chain_length=2)
STRATEGY = 'Answer with a list such as ["go"].'
OBSERVATIONS = ("At (1, 2).", "At (11, 12), with your back to the goal.", "2 3 up")
COMPLETION = 20
"""New tokens of free decoding."""

LARGEST_ERROR = 1e-5
"""Nats of a token by which float32 may differ."""


@torch.inference_mode()
def stock_logprobs(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> Tensor:
    """Log-probabilities (L, V) at the tokens of a completion, by the library's own forward pass."""
    logits = model(torch.tensor([[*prompt, *completion]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1].log_softmax(-1)


class Bench:
    """A family's model and tokenizer, and its prompts."""

    def __init__(self, family: Family) -> None:
        self.tokenizer = build_tokenizer(family)
        self.tokenizer.eos_token = end_of_completion(self.tokenizer)
        self.model = build_model(family, len(self.tokenizer))
        self.template = PromptTemplate(self.tokenizer, STRATEGY)
        self.prompts = self.template.encode_batch(OBSERVATIONS)

    def decoding(self) -> float:
        """Largest error of greedy decoding; infinite where a token is another than `generate`'s."""
        decoder = Decoder(self.model, -1, self.template.prefix_ids, COMPLETION, temperature=0)
        errors = []
        for prompt, row in zip(self.prompts, decoder.sample(self.prompts, range(3)), strict=True):
            ids = torch.tensor([prompt])
            stock = self.model.generate(ids, max_new_tokens=COMPLETION, do_sample=False)[0]
            if stock[len(prompt) :].tolist() != list(row.token_ids):
                return float("inf")
            own = stock_logprobs(self.model, prompt, row.token_ids).amax(-1)
            errors.append((own - torch.tensor(row.logprobs)).abs().max())
        return float(max(errors))

    def constrained(self) -> float:
        """Largest error of completions of the grammar, over the probabilities of all of them."""
        automaton = build_automaton(GRAMMAR, self.tokenizer)
        eos = self.tokenizer.eos_token_id
        decoder = Decoder(self.model, eos, self.template.prefix_ids, automaton=automaton)
        completions, probabilities = decoder.enumerate(self.prompts)
        errors = [
            abs(self._constrained_logprob(prompt, completion, completions) - torch.tensor(p).log())
            for prompt, row in zip(self.prompts, probabilities, strict=True)
            for completion, p in zip(completions, row, strict=True)
        ]
        return float(max(errors))

    def simpo(self) -> float:
        """Largest error of the completions' log-probabilities, two completions in one sequence."""
        check_family(self.model)
        said = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [14, 15]]
        rows = [
            {"prompt_ids": prompt, "chosen_ids": said[i % 2], "rejected_ids": said[(i + 1) % 2]}
            for i, prompt in enumerate(self.prompts)
        ]
        batch = PreferenceCollator(0)(rows)
        logprobs, branch = completion_logprobs(self.model, batch, torch.float32)
        errors = []
        for number, row in enumerate(rows):
            for part, name in ((CHOSEN, "chosen_ids"), (REJECTED, "rejected_ids")):
                own = stock_logprobs(self.model, row["prompt_ids"], row[name])
                own = own[range(len(row[name])), row[name]]
                errors.append((logprobs[number][branch[number] == part] - own).abs().max())
        return float(max(errors))

    def values(self) -> float:
        """Largest error of the policy's logits, all texts in one tree."""
        texts = [[*prompt, 5 + i % 2, *range(6, 16)] for i, prompt in enumerate(self.prompts * 2)]
        trees = prefix_trees(texts, pad_token_id=0)
        model = ValueModel(self.model, self.tokenizer, ValueMeaning("mc", 1.0, STRATEGY, 1, 8))
        batch = {
            name: torch.from_numpy(getattr(trees, name))
            for name in ("input_ids", "position_ids", "subtree_ends")
        }
        logits = self.model.get_output_embeddings()(model.hidden_states(**batch))
        logits = finished_logits(self.model.config, logits)
        errors = []
        for text, places in zip(texts, trees.places, strict=True):
            own = stock_logprobs(self.model, text[:1], text[1:])
            errors.append((logits[places[:-1]].log_softmax(-1) - own).abs().max())
        return float(max(errors))

    def prompts_equal(self) -> bool:
        """Whether prompts are the tokens that the chat template makes, thinking switched off."""
        expected = [self._chat(observation) for observation in OBSERVATIONS]
        begin = self.tokenizer.bos_token_id
        return self.prompts == expected and expected[0][:2] != [begin, begin]

    def _chat(self, observation: str) -> list[int]:
        """The library's tokens of a conversation, on the day that prompts are always made."""
        try:
            text = self._rendered(
                {"role": "system", "content": STRATEGY}, {"role": "user", "content": observation}
            )
        except TemplateError:
            text = self._rendered({"role": "user", "content": f"{STRATEGY}\n\n{observation}"})
        for style in ("%d %b %Y", "%d %B %Y", "%B %d, %Y"):
            text = text.replace(f"{datetime.now():{style}}", f"{datetime(2024, 7, 26):{style}}")
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _rendered(self, *messages: dict[str, str]) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=False
        )

    def _constrained_logprob(
        self, prompt: list[int], completion: Sequence[int], completions: Sequence[Sequence[int]]
    ) -> float:
        """Log-probability of a completion where nothing but one of `completions` may be said."""
        logprobs, total = stock_logprobs(self.model, prompt, list(completion)), 0.0
        for place, token in enumerate(completion):
            legal = sorted({a[place] for a in completions if a[:place] == completion[:place]})
            total += float(logprobs[place, legal].log_softmax(-1)[legal.index(token)])
        return total


MEASURES: tuple[Callable[[Bench], float], ...] = (
    Bench.decoding,
    Bench.constrained,
    Bench.simpo,
    Bench.values,
)


def measured(family: Family) -> list[str]:
    """A line of the table."""
    bench = Bench(family)
    cells = [_verdict(measure, bench) for measure in MEASURES]
    prompts = "equal" if bench.prompts_equal() else "another"
    cells.append("–" if family.template is None else prompts)
    return [family.name, f"`{family.model_type}`", *cells, family.note]


def _verdict(measure: Callable[[Bench], float], bench: Bench) -> str:
    try:
        error = measure(bench)
    except ConfigError:
        return "refused"
    return "equal" if error <= LARGEST_ERROR else f"off by {error:.1g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table on the page")
    write = parser.parse_args().write
    table = markdown(HEADER, map(measured, FAMILIES))
    print("\n".join(table))
    if write:
        put_between(PAGE, BEGIN, END, table)


if __name__ == "__main__":
    main()
