"""Plant mistakes in the code one at a time, and see whether the tests fail.

    python -m benchmarks.mutations [--only WORD] [--jobs 2]

Each mutant replaces a fragment of a source file in a copy of the working tree. Then pytest -x runs the mutant's test
files. A mutant is caught if a test fails. The last line counts the caught mutants; tests may be moved or removed as
long as that number does not fall.
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
COPIED = ("lacli", "tests", "benchmarks", "recipes", "docs", "pyproject.toml", "README.md")

PATIENCE_S = 600.0
"""Seconds that the tests of one mutant may take. A mutant whose tests take longer is caught."""

LOOP = ("tests/engine/test_engine.py", "tests/engine/test_seeds.py")
"""Tests that every mode equals plain decoding, token by token and seed by seed, on the fake context."""

MANY = ("tests/engine/test_admission.py",)
"""Tests that several sequences get the tokens that each gets alone."""


@dataclass(frozen=True)
class Mutant:
    """A `mistake` that replaces the only `fragment` in a `file`, and the test files that should catch it."""

    file: str
    fragment: str
    mistake: str
    tests: tuple[str, ...]


MISTAKES: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, str], ...]] = {
    ("lacli/pool.py", ("tests/test_pool.py",)): (
        ("del bucket[next(iter(bucket))]", "del bucket[next(reversed(bucket))]"),
        ("if len(bucket) >= self.guesses:", "if len(bucket) > self.guesses:"),
        ("        return reversed(bucket)\n", "        return iter(bucket)\n"),
        ("len(tokens) - self.ngram + 1, start)", "len(tokens) - self.ngram, start)"),
    ),
    ("lacli/window.py", ("tests/test_window.py", *LOOP)): (("first[1 : column + 1]", "first[:column]"),),
    ("lacli/window.py", ("tests/test_window.py",)): (
        ("            *self.rows[1:],\n", "            *self.rows[:-1],\n"),
        ("if computed >= len(later):", "if computed >= 0:"),
    ),
    ("lacli/tree.py", ("tests/test_tree.py", *LOOP)): (
        ("            elif verify:\n", "            elif not verify:\n"),
        ("self.depths.append(self.depths[parent] + 1)", "self.depths.append(self.depths[-1] + 1)"),
        ("            ids[below].append(sequence)\n", "            ids[below] = [sequence]\n"),
    ),
    ("lacli/batch.py", ("tests/llamacpp/test_settings.py", "tests/engine/test_engine.py")): (
        ("[input_position + depth for depth in tree.depths]", "[past + depth for depth in tree.depths]"),
    ),
    ("lacli/batch.py", LOOP): (
        ("self.tokens[0], self.positions[0] = tree.tokens[0], past", "self.tokens[0] = tree.tokens[0]"),
    ),
    ("lacli/engine/cells.py", LOOP): (
        (
            "self._context.copy(self.first_id + owner, self.first_id, start, end)",
            "self._context.copy(self.first_id + owner, self.first_id, start, end - 1)",
        ),
        (
            "self._context.remove(self.first_id + each, start, ALL)",
            "self._context.remove(self.first_id + each, start + 1, ALL)",
        ),
        ("            self._synced[each] = start\n", "            self._synced[each] = end\n"),
        ("gone = self._remove_from(end, [0, *others])", "gone = True"),
    ),
    ("lacli/engine/cells.py", ("tests/engine/test_reuse.py", *LOOP)): (
        ("self._synced = [min(synced, self.past) for synced in self._synced]", "pass"),
        ("            self._context.remove(each, 0, ALL)\n", "            pass\n"),
    ),
    ("lacli/engine/cells.py", MANY): (
        ("copy(other.first_id, self.first_id, 0, length)", "copy(other.first_id, self.first_id, 0, length - 1)"),
        ("gone = self._remove_from(end, [0, *others])", "gone = self._remove_from(end, [0])"),
        ("[self.first_id + each for each in used]", "[*used]"),
        ("            self._remove_from(0)\n", ""),
    ),
    ("lacli/engine/step.py", LOOP): (
        ("count == remaining", "count + 1 == remaining"),
        ("rooms = [max(size // 2, 1) for size in sizes]", "return None"),
    ),
    ("lacli/engine/step.py", MANY): (
        ("            if left < len(ready):\n", "            if False:\n"),
        ("self._choices[first : first + len(outputs)]", "self._choices[: len(outputs)]"),
        ("first += sum(tree.verified)", "first += len(tree)"),
    ),
    ("lacli/engine/engine.py", ("tests/engine/test_reuse.py", *LOOP)): (
        ("            self._admission.mend()\n", "            pass\n"),
    ),
    ("lacli/engine/engine.py", MANY): (("min(context.cells, longest)", "context.cells"),),
    ("lacli/engine/admission.py", MANY): (
        ("if each is slot or each.source is slot:", "if each is slot:"),
        ("self.find_cells(len(sequence.tokens) - shared + HEADROOM, slot)", "self.find_cells(0)"),
        ("self._cut(slot, common[slot])", "pass"),
    ),
    ("lacli/engine/replicas.py", ("tests/engine/test_replicas.py",)): (
        ("row.ids.add(target)", "pass"),
        ("min(each.position for each in [*replica.missing, *rows])", "rows[-1].position + 1"),
        ("for row in rows if row not in inside", "for row in rows[:1] if row not in inside"),
    ),
    ("lacli/verify.py", ("tests/test_verify.py", *LOOP)): (
        ("node = tree.child(node, tokens[-1])", "node = tree.child(node, tokens[0])"),
        ("while node is not None and finish is None:", "while node is not None:"),
    ),
    ("lacli/verify.py", ("tests/test_verify.py",)): (
        ("if self._random.random() < left[tried].sum():", "if self._random.random() <= left[tried].sum():"),
        ("rest = np.where(tried, 0.0, left)", "rest = left"),
    ),
    ("lacli/modes.py", MANY): (
        ("min(most, max_rows // len(growing))", "most"),
        ("min(most, max_rows // len(growing))", "min(most, 64 // len(growing))"),
    ),
    ("lacli/modes.py", ("tests/engine/test_engine.py",)): (
        ("range(outcome.accepted, 1 + len(self._block))", "range(outcome.accepted, len(self._block))"),
    ),
    ("lacli/modes.py", ("tests/test_modes.py",)): (
        (
            "self._end[tuple(tokens[end - length : end])] = end",
            "self._end.setdefault(tuple(tokens[end - length : end]), end)",
        ),
    ),
    ("lacli/ik/pin.py", ("tests/ik/test_pin.py",)): (
        ("ends = owned[owned % self._block == self._block - 1]", "ends = owned[:0]"),
        ("if end == self._cell or top - end > self._block:", "if end == self._cell:"),
    ),
    ("lacli/auto/mode.py", ("tests/auto/test_mode.py",)): (("self.experience.costs.needs_test", "False"),),
    ("lacli/auto/mode.py", ("tests/auto/test_several.py",)): (
        ("        if self._unseen:\n            return\n", ""),
        ("budget.record(self._tokens / self.sequences, cost)", "budget.record(self._tokens, cost)"),
    ),
    ("lacli/auto/draft.py", ("tests/auto/test_draft.py",)): (
        ("probability * chance >= MIN_PROBABILITY", "chance >= MIN_PROBABILITY"),
    ),
    ("lacli/auto/step_cost.py", ("tests/auto/test_draft.py",)): (
        ("for cost in costs[prompt_rows:]", "for cost in costs"),
    ),
    ("lacli/auto/step_cost.py", ("tests/auto/test_step_cost.py",)): (
        (
            "self.max_trial_rows = max(2 * max(self._known_rows, *self._seen, 1), FIRST_ROWS)",
            "self.max_trial_rows = self._max_rows",
        ),
    ),
    ("lacli/text/stream.py", ("tests/text/test_stream.py",)): (
        ("self._ends.append(self._length + bool(half))", "self._ends.append(self._length)"),
        ("default=1) - 1)", "default=1) - 2)"),
    ),
    ("lacli/llamacpp/sampler.py", ("tests/llamacpp/test_sampler.py",)): (
        ("for token in text[-self._reach :] if self._reach else ():", "for token in ():"),
        (
            "np.frombuffer(ctypes.string_at(array.data, array.size * CANDIDATE.itemsize), CANDIDATE)",
            "self._candidates[: array.size]",
        ),
    ),
    ("lacli/llamacpp/context.py", ("tests/end_to_end/test_bad_input.py",)): (
        ("if not all(map(isfinite, found)):", "if False:"),
    ),
    ("lacli/text/template.py", ("tests/text/test_template.py", "tests/engine/test_prompts.py")): (
        ("return rest if adds_bos else bos + rest", "return prompt"),
    ),
    ("lacli/hub/names.py", ("tests/hub/test_names.py",)): (("found if whole.search(name)] or found", "found]"),),
    ("lacli/hub/download.py", ("tests/hub/test_download.py",)): (
        ('outside = {"", ".", ".."} & set(name.split("/"))', 'outside = {""} & set(name.split("/"))'),
    ),
    ("lacli/chat/conversation.py", ("tests/chat/test_conversation.py",)): (
        ("self.messages[2 * self.dropped :]", "self.messages[self.dropped :]"),
    ),
}
"""By file and test files: pairs of a fragment, which the file has once, and the mistake that replaces it."""

MUTANTS = [
    Mutant(file, fragment, mistake, tests) for (file, tests), pairs in MISTAKES.items() for fragment, mistake in pairs
]


def copied_tree(folder: Path) -> Path:
    """Copy the parts of the working tree that tests need into `folder`/tree, and return that folder."""
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
    """Run a mutant's tests in a copied tree, and restore the tree. Return "caught", "survived" or an error."""
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
    """Try the mutants and print a table; return 1 if a mutant is not caught, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="only mutants with WORD in their file or fragment")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
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
