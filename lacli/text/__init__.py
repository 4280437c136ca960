"""Text around the model: templates, questions, files, streams of tokens, records and formats."""
