"""OpenAI's and Anthropic's protocols over HTTP: a Model answers requests, in one JSON body or as a stream of events."""
