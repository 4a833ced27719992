"""A tiny Llama as a GGUF file, written and the model that it is made of."""

import json
from pathlib import Path

import gguf
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXTS = ["The goal is 2 to the right and 13 down.", "It's a grid; you face up, or don't."]
TEXTS += ["é漢🙂 x"]
UNKNOWN, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Of GPT-2's kind, three hundred tokens; a turn begins and ends as in SmolLM2."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    told = {"vocab_size": 300, "special_tokens": [UNKNOWN, START, END], "show_progress": False}
    trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **told)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START, eos_token=END)


def tiny_llama(vocab_size: int) -> LlamaForCausalLM:
    shape = LlamaConfig(
        vocab_size=vocab_size, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, initializer_range=0.1,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(shape).eval()


def write_gguf(
    file: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast | None, *,
    quantised=False, architecture="llama", chat_template=CHAT_TEMPLATE, pre="gpt-2", eos=END,
) -> None:  # fmt: skip
    """As llama.cpp's converter does: rows of queries and keys pair neighbours, not halves."""
    shape, writer = model.config, gguf.GGUFWriter(file, architecture)
    writer.add_license("apache-2.0")
    writer.add_context_length(128)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab_size)
    if tokenizer is not None:
        add_tokenizer(writer, tokenizer, pre, eos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.num_hidden_layers)
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, weight in model.state_dict().items():
        theirs, values = names.get_name(name, [".weight"]), paired(name, weight, shape).numpy()
        if name == "lm_head.weight":
            continue  # it is that of the embedding
        if quantised and weight.ndim == 2:
            writer.add_tensor(theirs, gguf.quants.quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(theirs, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer, tokenizer: PreTrainedTokenizerFast, pre: str, eos: str) -> None:
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([control if t in (UNKNOWN, START, END) else normal for t in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(vocabulary.index(START))
    writer.add_eos_token_id(vocabulary.index(eos))
    writer.add_unk_token_id(vocabulary.index(UNKNOWN))
    writer.add_add_bos_token(False)


def paired(name: str, weight: torch.Tensor, shape: LlamaConfig) -> torch.Tensor:
    """A weight as llama.cpp has it."""
    heads = {"q_proj": shape.num_attention_heads, "k_proj": shape.num_key_value_heads}
    for part, number in heads.items():
        if part in name:
            halves = weight.reshape(number, 2, shape.head_dim // 2, -1)
            weight = halves.transpose(1, 2).reshape(weight.shape)
    return weight
