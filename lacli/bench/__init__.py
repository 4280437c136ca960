"""`lacli bench`: modes beside plain decoding, on prompts of many kinds, with paired statistics."""
