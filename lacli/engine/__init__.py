"""From prompts to tokens: one engine decodes all sequences of a context, in the caller's thread or in a worker's."""
