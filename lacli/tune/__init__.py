"""`lacli tune`: a search for the fixed setting that is fastest on somebody's prompts, and its result, remembered."""
