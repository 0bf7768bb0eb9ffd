"""Values of `source`, as FORMAT.md has them: where a token comes from."""

PADDING, SYSTEM, PROMPT, SAMPLED, TOOL = range(5)
