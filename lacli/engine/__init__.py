"""From prompts to tokens: an engine decodes all sequences of a context, in the caller's thread or a worker's."""
