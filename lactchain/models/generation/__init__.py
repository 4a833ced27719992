"""Completions from a causal language model: sampled, listed with their probabilities, or ranked.

Two things make this more than a loop around a model. First, all prompts of a policy begin with
the same instruction. Its keys and values are computed once (`cascade`), and each row attends to
them and to its own few tokens under one softmax, so that a long instruction costs next to nothing.
Second, the legal completions are known: they are chains of named actions. So we can list the tokens
that may come next (`automaton`), draw from these alone, and read several tokens at once where there
is no choice (`decoding`). The completions are the leaves of a tree (`enumeration`); as each
beginning is read once, the probability of all chains costs little more than that of the longest
few. This gives a policy's exact distribution, and with it its exact value.
"""
