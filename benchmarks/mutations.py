"""How tight the net of tests is: mistakes put into the code one at a time, and the tests that should notice each.

    python -m benchmarks.mutations [--only WORD] [--jobs 2]

Each mutant is a fragment of a source file and what takes its place, with the test files that are asked. The working
tree is copied, the fragment replaced, and pytest run with -x: a mutant is caught where a test fails. The table's last
line counts them; tests may move or go as long as that number does not fall.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import perf_counter

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("lacli", "tests", "benchmarks", "recipes", "docs", "pyproject.toml", "models.txt", "README.md")

PATIENCE_S = 600.0
"""Seconds that the tests of one mutant may take; a mutant whose tests never end is caught."""

LOOP = ("tests/test_decode.py", "tests/session/test_seeds.py")
"""Every mode equals plain decoding, token by token and seed by seed, on the fake engine."""


MANY = ("tests/test_schedule.py", "tests/test_cache.py")
"""Every text among others gets what it gets alone."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: the file, the fragment that stands in it once, what takes its place, and the tests that are asked."""

    file: str
    fragment: str
    mistake: str
    tests: tuple[str, ...]


MUTANTS = (
    # The pool.
    Mutant(
        "lacli/pool.py", "del bucket[next(iter(bucket))]", "del bucket[next(reversed(bucket))]", ("tests/test_pool.py",)
    ),
    Mutant(
        "lacli/pool.py", "if len(bucket) >= self.guesses:", "if len(bucket) > self.guesses:", ("tests/test_pool.py",)
    ),
    Mutant(
        "lacli/pool.py", "        return reversed(bucket)\n", "        return iter(bucket)\n", ("tests/test_pool.py",)
    ),
    Mutant(
        "lacli/pool.py",
        "len(tokens) - self.ngram + 1):\n            key",
        "len(tokens) - self.ngram):\n            key",
        ("tests/test_pool.py",),
    ),
    Mutant(
        "lacli/pool.py",
        "self._next = min(self._next, max(length - ngram + 1, 0))",
        "self._next = min(self._next, max(length, 0))",
        ("tests/test_pool.py",),
    ),
    # The window.
    Mutant("lacli/window.py", "first[1 : column + 1]", "first[:column]", ("tests/test_window.py", *LOOP)),
    Mutant(
        "lacli/window.py", "self.rows = [*self.rows[1:],", "self.rows = [*self.rows[:-1],", ("tests/test_window.py",)
    ),
    Mutant("lacli/window.py", "if computed >= len(later):", "if computed >= 0:", ("tests/test_window.py",)),
    Mutant(
        "lacli/window.py",
        "window.shift(accepted - 1)",
        "window.shift(accepted)",
        ("tests/test_window.py",),
    ),
    # The tree and the batch.
    Mutant(
        "lacli/tree.py", "            elif verify:\n", "            elif not verify:\n", ("tests/test_tree.py", *LOOP)
    ),
    Mutant(
        "lacli/tree.py",
        "self.depths.append(self.depths[parent] + 1)",
        "self.depths.append(self.depths[-1] + 1)",
        ("tests/test_tree.py", *LOOP),
    ),
    Mutant(
        "lacli/tree.py",
        "            sequences[below].append(sequence)\n",
        "            sequences[below] = [sequence]\n",
        ("tests/test_tree.py", *LOOP),
    ),
    Mutant(
        "lacli/batch.py",
        "[behind + depth for depth in tree.depths]",
        "[past + depth for depth in tree.depths]",
        ("tests/llamacpp/test_settings.py", "tests/test_decode.py"),
    ),
    Mutant(
        "lacli/batch.py",
        "self.tokens[0], self.positions[0] = tree.tokens[0], past",
        "self.tokens[0] = tree.tokens[0]",
        LOOP,
    ),
    # The cache's calls.
    Mutant(
        "lacli/cache.py",
        "self._engine.copy(self.first + owner, self.first, start, end)",
        "self._engine.copy(self.first + owner, self.first, start, end - 1)",
        LOOP,
    ),
    Mutant(
        "lacli/cache.py",
        "self._engine.remove(self.first + sequence, start, ALL)",
        "self._engine.remove(self.first + sequence, start + 1, ALL)",
        LOOP,
    ),
    Mutant(
        "lacli/cache.py",
        "            self._shared[sequence] = start\n",
        "            self._shared[sequence] = end\n",
        LOOP,
    ),
    Mutant("lacli/cache.py", "gone = self._remove_from(end, [0, *others])", "gone = True", LOOP),
    Mutant(
        "lacli/cache.py",
        "self._shared = [min(shared, length) for shared in self._shared]",
        "pass",
        ("tests/session/test_reuse.py", "tests/chat/test_conversation.py", *LOOP),
    ),
    Mutant(
        "lacli/cache.py",
        "self._engine.shift(self.first, n_keep + count, ALL, -count)",
        "self._engine.shift(self.first, n_keep + count, ALL, -count - 1)",
        ("tests/chat/test_conversation.py", *LOOP),
    ),
    # Verification and the loop.
    Mutant(
        "lacli/verify.py",
        "node = tree.child(node, tokens[-1])",
        "node = tree.child(node, tokens[0])",
        ("tests/test_verify.py", *LOOP),
    ),
    Mutant(
        "lacli/verify.py",
        "while node is not None and finish is None:",
        "while node is not None:",
        ("tests/test_verify.py", *LOOP),
    ),
    Mutant(
        "lacli/verify.py",
        "if self._random.random() < left[tried].sum():",
        "if self._random.random() <= left[tried].sum():",
        ("tests/test_verify.py",),
    ),
    Mutant("lacli/verify.py", "rest = np.where(tried, 0.0, left)", "rest = left", ("tests/test_verify.py",)),
    Mutant("lacli/decode.py", "count == remaining", "count + 1 == remaining", LOOP),
    Mutant(
        "lacli/decode.py",
        "self.group.cut(min(same, len(prompt) - 1))",
        "self.group.cut(same)",
        ("tests/session/test_reuse.py", "tests/chat/test_conversation.py"),
    ),
    Mutant("lacli/decode.py", "rooms = [max(size // 2, 1) for size in sizes]", "return None", LOOP),
    Mutant("lacli/modes.py", "min(most, room // len(texts))", "most", MANY),
    Mutant("lacli/modes.py", "min(most, room // len(texts))", "min(most, 64 // len(texts))", MANY),
    Mutant("lacli/decode.py", "            if left < len(texts):\n", "            if False:\n", MANY),
    Mutant(
        "lacli/cache.py",
        "copy(lender.first, self.first, 0, length)",
        "copy(lender.first, self.first, 0, length - 1)",
        MANY,
    ),
    Mutant("lacli/cache.py", "gone = self._remove_from(end, [0, *others])", "gone = self._remove_from(end, [0])", MANY),
    Mutant("lacli/cache.py", "[self.first + each for each in used]", "[*used]", MANY),
    Mutant("lacli/cache.py", "        else:\n            self._remove_from(0)\n", "", MANY),
    Mutant(
        "lacli/cache.py", "            self._engine.remove(sequence, 0, ALL)\n", "            pass\n", (*MANY, *LOOP)
    ),
    Mutant("lacli/cache.py", "choices[place : place + text.outputs]", "choices[: text.outputs]", MANY),
    Mutant("lacli/cache.py", "found.tokens[self.first_output : end]", "found.tokens[: end - self.first_output]", MANY),
    Mutant(
        "lacli/cache.py",
        "        if self._owns_all:\n            self._engine.clear()",
        "        if True:\n            self._engine.clear()",
        MANY,
    ),
    Mutant(
        "lacli/auto/experience.py",
        "        self.kinds[sampled] = self\n",
        "        self.kinds[sampled] = self.kinds[not sampled] = self\n",
        ("tests/auto/test_experience.py", "tests/auto/test_shared_step.py"),
    ),
    Mutant(
        "lacli/auto/shared_step.py",
        "        if self._unseen:\n            return\n",
        "",
        ("tests/auto/test_shared_step.py",),
    ),
    Mutant("lacli/schedule.py", "min(text.borrowed, heir.borrowed)", "heir.borrowed", MANY),
    Mutant("lacli/schedule.py", "                each.lender = heir\n", "                pass\n", MANY),
    Mutant(
        "lacli/schedule.py",
        "self._find_cells(len(text.tokens) - shared + headroom, lender, shared)",
        "self._find_cells(0, lender, shared)",
        MANY,
    ),
    Mutant("lacli/schedule.py", "            headroom += HEADROOM\n", "", MANY),
    Mutant("lacli/schedule.py", "text.n_keep is None and self._lends", "self._lends", MANY),
    Mutant("lacli/schedule.py", "            place.clear()\n", "", MANY),
    Mutant("lacli/schedule.py", "min(engine.cells, engine.trained_context)", "engine.cells", MANY),
    Mutant(
        "lacli/modes.py",
        "range(outcome.accepted, 1 + len(self._block))",
        "range(outcome.accepted, len(self._block))",
        ("tests/test_decode.py",),
    ),
    Mutant(
        "lacli/modes.py",
        "replaced.append((run, self._end.get(run)))\n                self._end[run] = end",
        "replaced.append((run, self._end.get(run)))\n                self._end.setdefault(run, end)",
        ("tests/test_modes.py",),
    ),
    # Mode auto.
    Mutant(
        "lacli/auto/planner.py",
        "reach * chance >= MIN_PROBABILITY",
        "chance >= MIN_PROBABILITY",
        ("tests/auto/test_planner.py",),
    ),
    Mutant(
        "lacli/auto/planner.py",
        "plain, rows, tokens = relative[texts], texts + beside",
        "plain, rows, tokens = relative[texts], texts",
        ("tests/auto/test_planner.py",),
    ),
    Mutant(
        "lacli/auto/shared_step.py",
        "self._budget.record(self._tokens / self._texts, cost)",
        "self._budget.record(self._tokens, cost)",
        ("tests/auto/test_shared_step.py",),
    ),
    Mutant("lacli/auto/suffix.py", "self._latest[pair] = before\n", "pass\n", ("tests/auto/test_suffix.py",)),
    Mutant("lacli/auto/acceptance.py", "if self._credit < 0:", "if False:", ("tests/auto/test_acceptance.py",)),
    Mutant(
        "lacli/auto/acceptance.py",
        "self.trust = min(self._hits / self._promised, 1.0)",
        "self.trust = 1.0",
        ("tests/auto/test_acceptance.py",),
    ),
    Mutant(
        "lacli/auto/cost_model.py",
        "return max(2 * max(known, *self._observed, self._texts), FIRST_ROWS)",
        "return self._max_rows",
        ("tests/auto/test_mode.py",),
    ),
    Mutant(
        "lacli/auto/experience.py",
        "weight = 0.5 ** (max(age_s, 0.0) / HALF_LIFE_S)",
        "weight = 1.0",
        ("tests/auto/test_experience.py",),
    ),
    # Texts and samplers.
    Mutant(
        "lacli/text/stream.py",
        "self._ends.append(self._length + bool(half))",
        "self._ends.append(self._length)",
        ("tests/text/test_stream.py",),
    ),
    Mutant(
        "lacli/text/stream.py",
        "default=1) - 1)",
        "default=1) - 2)",
        ("tests/text/test_stream.py",),
    ),
    Mutant(
        "lacli/llamacpp/sampler.py",
        "for token in text[-self._reach :] if self._reach else ():",
        "for token in ():",
        ("tests/llamacpp/test_sampler.py",),
    ),
    Mutant(
        "lacli/llamacpp/sampler.py",
        "left = _left_in(_apply(samplers.sampler_chain, array))",
        "left = self._candidates[: _apply(samplers.sampler_chain, array).size]",
        ("tests/llamacpp/test_sampler.py",),
    ),
    Mutant(
        "lacli/llamacpp/context.py",
        "if not all(map(isfinite, found)):",
        "if False:",
        ("tests/end_to_end/test_bad_input.py",),
    ),
    # Templates, the hub and the chat.
    Mutant(
        "lacli/text/template.py",
        "return rest if adds_bos else bos + rest",
        "return prompt",
        ("tests/text/test_template.py", "tests/session/test_template_sessions.py"),
    ),
    Mutant("lacli/hub/names.py", "found if whole.search(name)] or found", "found]", ("tests/hub/test_names.py",)),
    Mutant(
        "lacli/hub/library.py",
        'outside = {"", ".", ".."} & set(name.split("/"))',
        'outside = {""} & set(name.split("/"))',
        ("tests/hub/test_download.py",),
    ),
    Mutant(
        "lacli/chat/talk.py",
        "del self.messages[:2]",
        "del self.messages[:1]",
        ("tests/chat/test_conversation.py",),
    ),
    Mutant(
        "lacli/session/session.py",
        "if not self._busy.acquire(blocking=False):",
        "if False:",
        ("tests/session/test_lifetime.py", "tests/session/test_session.py"),
    ),
)


def copied_tree(folder: Path) -> Path:
    """Copy what tests need of the working tree into a new folder below `folder`."""
    tree = folder / "tree"
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, tree / name)
    return tree


def outcome(mutant: Mutant, tree: Path) -> str:
    """Say what the tests do with a mutant in a copied tree, which is whole again afterwards."""
    path = tree / mutant.file
    source = path.read_text("utf-8")
    if source.count(mutant.fragment) != 1:
        return f"the fragment stands {source.count(mutant.fragment)} times in the file"
    path.write_text(source.replace(mutant.fragment, mutant.mistake), "utf-8")
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    try:
        environment = {**os.environ, "CI": "true", "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return "caught"
    finally:
        path.write_text(source, "utf-8")
    return {0: "survived", 1: "caught", 2: "caught"}.get(done.returncode, f"pytest ended with {done.returncode}")


def main() -> int:
    """Try the mutants and print a line for each; 1 where one survived or could not be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="those whose file or fragment has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.file + mutant.fragment]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as threads:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(arguments.jobs):
            trees.put(copied_tree(Path(folder) / str(job)))

        def tried(mutant: Mutant) -> tuple[str, float]:
            tree, begin = trees.get(), perf_counter()
            try:
                return outcome(mutant, tree), perf_counter() - begin
            finally:
                trees.put(tree)

        table = Table("file", "fragment", "outcome", "s")
        found = []
        for mutant, (word, seconds) in zip(chosen, threads.map(tried, chosen), strict=True):
            found.append(word)
            print(f"{word}: {mutant.file}: {mutant.fragment.strip()}", file=sys.stderr, flush=True)
            table.add_row(mutant.file, mutant.fragment.strip(), word, f"{seconds:.0f}")
    Console().print(table)
    print(f"{found.count('caught')} of {len(chosen)} mutants are caught")
    return int(found.count("caught") < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
