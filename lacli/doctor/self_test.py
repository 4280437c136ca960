"""The doctor's own try: the bundled demo model answers, plainly and with lookahead, in about a second."""

from __future__ import annotations

from typing import NamedTuple

QUESTION = "Show me the source code of `json.dumps`."
TOKENS, CELLS = 48, 512


class SelfTest(NamedTuple):
    """Tokens a second of both modes, and whether their texts are the same."""

    plain: float
    lookahead: float
    same: bool


def run_self_test(threads: int) -> SelfTest:
    """Answer one question in both modes. threads: 0 for one a physical core. Raises what a session raises."""
    from lacli.hub.names import demo_model
    from lacli.llamacpp.sampling import SamplingSettings
    from lacli.llamacpp.settings import ModelSettings
    from lacli.session.session import Session
    from lacli.settings import DecodeSettings

    loading = ModelSettings(context=CELLS, threads=threads)
    answers = []
    for mode in ("plain", "lookahead"):
        decoding = DecodeSettings(mode=mode)
        with Session(demo_model(), loading, decoding, SamplingSettings()) as session:
            generation = session.generate(session.prompt(QUESTION), TOKENS)
            for _ in generation:
                pass
            answers.append(generation.answer())
    plain, lookahead = answers
    return SelfTest(
        plain.statistics.tokens_per_second, lookahead.statistics.tokens_per_second, plain.tokens == lookahead.tokens
    )
