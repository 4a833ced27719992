"""Random checkpoints are what the published ones are, but for their weights."""

import random_models

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate


def test_prompts_are_those_of_the_published_chat_template(tmp_path):
    random_models.build_actor(tmp_path, hidden_size=64, num_layers=2)
    tokenizer = load_tokenizer(tmp_path, padding_side="left", chat=True)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<s>[INST] S\n\nU[/INST]"
    assert not (tmp_path / "chat_template.jinja").exists()
    grammar = make_language_env(EnvironmentConfig()).grammar
    template = PromptTemplate(tokenizer, "founding", grammar)
    prompt = template.encode("2 3 up 1 0")
    assert prompt.count(1) == 1 and prompt[-1] == tokenizer.convert_tokens_to_ids("[/INST]")
    assert build_automaton(grammar, tokenizer) is not None
