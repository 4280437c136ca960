"""The public suites by name: where each lies, how much of it is asked, and how its files are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.suites.files import read_suite
from lacli.bench.tasks import Task
from lacli.errors import LacliError, UsageError
from lacli.hub.library import careful_library, reason

HUB = "https://huggingface.co"
GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Source:
    """One file on the hub. kind: the class of its rows where they name none."""

    repository: str
    file: str
    kind: str = ""
    space: bool = False
    revision: str = "main"

    @property
    def url(self) -> str:
        return f"{HUB}/{'spaces' if self.space else 'datasets'}/{self.repository}/resolve/{self.revision}/{self.file}"


@dataclass(frozen=True)
class Suite:
    """What a suite's name stands for.

    by_hand: the address of one file with all of it that --file reads, where there is one beside its only source.
    first: the number of tasks taken from the beginning, 0 for all.
    """

    words: str
    sources: tuple[Source, ...]
    by_hand: str = ""
    first: int = 0

    @property
    def address(self) -> str:
        return self.by_hand or self.sources[0].url


MT_BENCH = Source("lmsys/mt-bench", "data/mt_bench/question.jsonl", space=True)
# Spec-Bench is MT-Bench's questions and five more classes; this repository has those with a class a file.
SPEC_BENCH = tuple(
    Source("RedHatAI/speculator_benchmarks", f"{kind}.jsonl", kind)
    for kind in ("translation", "summarization", "qa", "math_reasoning", "rag")
)

SUITES = {
    "spec-bench": Suite(
        "480 questions of 13 classes, those of MT-Bench among them",
        (MT_BENCH, *SPEC_BENCH),
        f"{GITHUB}/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
    ),
    "humaneval": Suite(
        "164 Python functions to complete",
        (Source("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet"),),
        "https://github.com/openai/human-eval/raw/master/data/HumanEval.jsonl.gz",
    ),
    "mt-bench": Suite("80 conversations of two turns", (MT_BENCH,)),
    "gsm8k": Suite(
        "the first 1,000 word problems of GSM8K's test",
        (Source("openai/gsm8k", "main/test-00000-of-00001.parquet"),),
        f"{GITHUB}/openai/grade-school-math/master/grade_school_math/data/test.jsonl",
        first=1000,
    ),
    "mbpp": Suite(
        "500 small Python programs to write",
        (Source("google-research-datasets/mbpp", "full/test-00000-of-00001.parquet"),),
        f"{GITHUB}/google-research/google-research/master/mbpp/mbpp.jsonl",
    ),
    "classeval": Suite(
        "100 Python classes to complete",
        # Later revisions hold Parquet only.
        (Source("FudanSELab/ClassEval", "ClassEval_data.json", revision="772c9977fb5dca16ab54370b50354ba37066b180"),),
        f"{GITHUB}/FudanSELab/ClassEval/master/data/ClassEval_data.json",
    ),
    "xsum": Suite(
        "1,000 news articles to summarise",
        (Source("EdinburghNLP/xsum", "data/test-00000-of-00001.parquet"),),
        first=1000,
    ),
    "cnn-dm": Suite(
        "1,000 longer news articles to summarise",
        (Source("abisee/cnn_dailymail", "3.0.0/test-00000-of-00001.parquet"),),
        first=1000,
    ),
}
"""The paper says how many questions it takes of GSM8K; of the articles it does not."""


def suite_of(name: str) -> Suite:
    """The suite of a name. Raises UsageError."""
    if name not in SUITES:
        raise UsageError(f"there is no suite {name}", f"the suites are {', '.join(SUITES)}")
    return SUITES[name]


def load_suite(name: str, *, offline: bool = False, cache: str | None = None) -> list[Task]:
    """The tasks of a public suite, fetched once and then read from the hub's cache.

    offline: only from the cache. cache: its folder, or the hub's own. Raises UsageError for a suite that does not
    exist, and LacliError, with what to download by hand, when it cannot be fetched.
    """
    suite = suite_of(name)
    tasks: list[Task] = []
    for source in suite.sources:
        try:
            path = fetch(source, offline=offline, cache=cache)
        except FetchError as error:
            by_hand = f"download {suite.address} and give it with --file"
            raise LacliError(f"cannot fetch suite {name}: {error}", by_hand) from error
        tasks += read_suite(path, kind=source.kind or name, first=suite.first)
    return tasks


class FetchError(Exception):
    """Why a file could not be fetched, in a few words."""


def fetch(source: Source, *, offline: bool = False, cache: str | None = None) -> str:
    """The path of a source's file, downloaded where the cache lacks it. Raises FetchError."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    download = partial(
        hf_hub_download,
        source.repository,
        source.file,
        repo_type="space" if source.space else "dataset",
        revision=source.revision,
        cache_dir=cache,
    )
    try:
        # First the cache alone: asking for news of a file that is there takes seconds without a network.
        return str(download(local_files_only=True))
    except LocalEntryNotFoundError as error:
        if offline:
            raise FetchError(f"{source.file} of {source.repository} is not in the cache") from error
    try:
        with careful_library():
            return str(download())
    except Exception as error:  # the hub, its transport and the disk raise many kinds
        raise FetchError(reason(error, source.repository, f"{source.file} in {source.repository}").why) from error
