"""Measure how often each kind of mode auto's drafts is accepted in recorded answers, to set auto's first estimates.

    python -m benchmarks.hit_rates --models FILE,FILE --spec-bench FILE

Each source drafts each token of each answer from the prompt and the answer so far. `benchmarks.replay --record` has
decoded the answers. Every class has the same weight, however many tokens its answers have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.records import OWN_PROMPTS, Record, Records, questions
from benchmarks.replay import CACHE
from lacli.auto import suffix
from lacli.auto.draft import HitRates
from lacli.auto.suffix import RewritingSource, SuffixSource
from lacli.text.format import markdown

EXPECTED: Mapping[str, Sequence[float]] = {"suffix": suffix.EXPECTED, "rewriting": suffix.EXPECTED_AFTER_CHANGE}


class Count(HitRates):
    """Counts of accepted drafts (`hits`) and of drafts (`tries`), by kind."""

    def __init__(self, expected: Sequence[float]) -> None:
        super().__init__(expected)
        self.hits, self.tries = [0] * len(expected), [0] * len(expected)

    def record(self, kind: int, hit: bool) -> None:
        self.hits[kind] += hit
        self.tries[kind] += 1


def follow(record: Record) -> dict[str, Count]:
    """Let each source draft every token of a recorded answer; return the counts of each source by its name."""
    counts = {name: Count(chances) for name, chances in EXPECTED.items()}
    matches = SuffixSource(frozenset(record.ends).__contains__)
    copies = RewritingSource(matches)
    matches.hits, copies.hits = counts["suffix"], counts["rewriting"]
    for source in (matches, copies):
        source.begin(record.prompt)
    for place in range(len(record.prompt), len(record.text) + 1):
        for source in (matches, copies):
            source.extend(record.text[:place])
            source.first(record.text[:place])
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="GGUF files with recorded answers, with commas")
    parser.add_argument("--spec-bench", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--half", choices=("tune", "report"), default="tune", help="the half of the questions")
    parser.add_argument("--each", type=int, default=6, help="questions of each class and half")
    parser.add_argument("--limit", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--cache", type=Path, default=CACHE, help="the folder of the records")
    arguments = parser.parse_args()
    found: dict[tuple[str, int], dict[str, list[int]]] = {}
    for model in arguments.models.split(","):
        records = Records(arguments.cache, Path(model), arguments.limit)
        for question in questions([*OWN_PROMPTS, arguments.spec_bench], arguments.each):
            record = records.plain(question, decode=False) if question.half == arguments.half else None
            for name, count in follow(record).items() if record else ():
                for kind, (hits, tries) in enumerate(zip(count.hits, count.tries, strict=True)):
                    mine = found.setdefault((name, kind), {}).setdefault(question.kind, [0, 0])
                    mine[0] += hits
                    mine[1] += tries
    rows = []
    for (name, kind), classes in found.items():
        hits, tries = map(sum, zip(*classes.values(), strict=True))
        seen = [mine[0] / mine[1] for mine in classes.values() if mine[1] >= MIN_TRIES]
        each = f"{min(seen):.2f} to {max(seen):.2f}" if seen else ""
        rate = f"{hits / tries:.3f}" if tries else ""
        rows.append([name, str(kind), f"{EXPECTED[name][kind]:g}", rate, str(tries), each])
    print(markdown(["source", "kind", "expected", "came true", "tries", "by class"], rows))


MIN_TRIES = 10
"""The fewest tries of a class whose rate counts for the column `by class`."""

if __name__ == "__main__":
    main()
