"""Completions from a causal language model: sampled, listed with their probabilities, or ranked.

All prompts of a policy begin with the same instruction, whose keys and values are computed once
(`cascade`). The legal completions are chains of named actions: we list the tokens that may come
next (`automaton`), draw from these alone (`decoding`), and weigh all completions as the leaves of a
tree, of which each beginning is read once (`enumeration`): a policy's exact distribution.
"""
