"""`lacli bench`: modes compared with plain decoding, on prompts of many kinds, with paired statistics."""
