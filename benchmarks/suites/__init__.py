"""The public data sets that papers measure with, asked as the lookahead paper asks them, and scored."""
