"""A loaded model that answers: its prompts, one generation, and the report of an answer."""
