"""OpenAI's protocol over HTTP: requests to answers of a Model, and answers to bodies and events."""
