"""What a conversation gains from what is kept between its turns: the cache, the pool and the suffix index.

    python -m benchmarks.chat turns       S, decoded tokens and times by turn: all kept, learned anew, nothing kept
    python -m benchmarks.chat again       S of /regen where the answer taken back is forgotten, and where it is not
    python -m benchmarks.chat overhead    what a turn costs besides prefill and steps, by the length of the history

The conversations edit a function in three turns, as the bundled model was trained to. All ways to keep take turns in
one process and one context. Each prints a Markdown table; nothing here is timed by the tests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter

from benchmarks.core import PROMPTS, ms, print_table
from benchmarks.keeping import KeepingNothing, LearningAnew, Unforgetting
from lacli.auto.mode import AutoModes
from lacli.chat.conversation import Chat, PromptTokens
from lacli.chat.settings import ChatSettings
from lacli.chat.talk import Conversation
from lacli.decode import Decoder
from lacli.hub.download import find_model
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import ModelSettings
from lacli.modes import Lookahead, Lookup, Mode
from lacli.pool import NgramPool
from lacli.session.generation import Answer
from lacli.session.session import Session
from lacli.settings import DecodeSettings
from lacli.text.stream import Piece

LARGE = DecodeSettings(mode="lookahead")
SMALL = DecodeSettings(mode="lookahead", window=5, ngram=5, guesses=5)
GREEDY = SamplingSettings()
MODES = {
    "plain": DecodeSettings(mode="plain"),
    "lookup": DecodeSettings(mode="lookup"),
    "lookahead 5/5/5": SMALL,
    "lookahead 15/5/15": LARGE,
    "15/5/15, prompt not learned": replace(LARGE, pool_prompt=False),
}
NEW_NAME = "compute"


WAYS: dict[str, type[Decoder]] = {"kept": Decoder, "learned anew": LearningAnew, "nothing kept": KeepingNothing}
ALONE = "asked alone"
MEMORIES: dict[str, type[Decoder]] = {"forgotten": Decoder, "still known": Unforgetting}


class Bench(Session):
    """One model and one context for all modes; each conversation gets a decoder of the kind that is measured."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        threads: int = arguments.threads
        model_settings = ModelSettings(context=arguments.context, threads=threads, threads_batch=threads)
        super().__init__(find_model(arguments.model), model_settings, replace(LARGE, strict=arguments.strict), GREEDY)
        self.limit: int = arguments.tokens
        self.repeats: int = arguments.repeats
        self.sizes: list[int] = arguments.sizes
        self.modes = {name: MODES[name] for name in arguments.modes}
        self.pasted: bool = arguments.pasted
        self.conversations = conversations(arguments.prompts, pasted=self.pasted)[: arguments.each]

    def chat(self, kind: type[Decoder], decode_settings: DecodeSettings, sampling: SamplingSettings) -> Chat:
        """A new conversation."""
        self.adapt(decode_settings, sampling)
        self.decoder = kind(self.engine, self.settings, self._verifier(), make_mode=AutoModes())
        return Chat(self, ChatSettings(self.settings, sampling, self.limit), Conversation())


@dataclass(frozen=True)
class Turn:
    """An answer and its seconds from the question to its last token."""

    answer: Answer
    seconds: float


def conversations(prompts: Path, *, pasted: bool) -> list[list[str]]:
    """The questions of each conversation. pasted: each shows the code anew, else only the first does."""
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    functions = [row["prompt"].split("```python\n")[1] for row in rows if row["class"] == "edit"]
    return [edits(text.removesuffix("\n```"), pasted=pasted) for text in functions]


def edits(code: str, *, pasted: bool) -> list[str]:
    """Three edits of a function with a docstring of one line."""
    name = code.removeprefix("def ").split("(")[0]
    bare = "\n".join(line for line in code.splitlines() if '"""' not in line)
    later = [f"Rename `{name}` to `{NEW_NAME}` in this code", "Add a docstring to this function"]
    shown = [fenced(bare), fenced(bare.replace(name, NEW_NAME))] if pasted else [".", "."]
    first = f"Remove the docstring from this function{fenced(code)}"
    return [first, *(question + end for question, end in zip(later, shown, strict=True))]


def fenced(code: str) -> str:
    return f":\n```python\n{code}\n```"


def converse(chat: Chat, questions: Sequence[str], *, alone: bool = False) -> list[Turn]:
    """All questions, in turns. alone: each in a conversation of its own."""
    found = []
    for question in questions:
        if alone:
            chat.clear()
        found.append(timed_turn(chat, chat.ask(question)))
    return found


def timed_turn(chat: Chat, pieces: Iterator[Piece]) -> Turn:
    """An answer; it begins when its first piece is asked for."""
    start = perf_counter()
    for _ in pieces:
        pass
    assert chat.last, "something was answered"
    return Turn(chat.last, perf_counter() - start)


def turns(bench: Bench) -> Iterator[list[str]]:
    """A row for each mode and turn; medians of the times, and those of the whole turn in units of `kept`."""
    # Only a question that shows its code can be asked without those before it.
    ways = {**WAYS, ALONE: KeepingNothing} if bench.pasted else WAYS
    names = " / ".join(ways)
    yield ["mode", "turn", "prompt", f"decoded: {names}", "S", "1st token ms", "tokens/s", "turn's seconds"]
    held: dict[tuple[str, str], list[list[Turn]]] = {key: [] for key in product(bench.modes, ways)}
    converse(bench.chat(Decoder, LARGE, GREEDY), bench.conversations[0])  # The first of a process is slower.
    for _, questions in product(range(bench.repeats), bench.conversations):
        for (mode, way), found in held.items():
            found.append(converse(bench.chat(ways[way], bench.modes[mode], GREEDY), questions, alone=way == ALONE))
    for mode in bench.modes:
        for turn in range(len(bench.conversations[0])):
            yield [mode, str(turn + 1), *turn_cells([[each[turn] for each in held[mode, way]] for way in ways])]
    texts = [[said(each) for each in found] for (_, way), found in held.items() if way != ALONE]
    parted = sum(one != other for each in texts for one, other in zip(texts[0], each, strict=True))
    print(f"\n{parted} of {len(texts) * len(texts[0])} conversations have another text than the first in its place.")


def said(turns: Sequence[Turn]) -> list[tuple[int, ...]]:
    return [turn.answer.tokens for turn in turns]


def turn_cells(ways: list[list[Turn]]) -> list[str]:
    """One turn of all conversations: a list for each way, in the same order."""
    columns = [[turn.answer.statistics for turn in way] for way in ways]
    prompt = f"{median(each.prompt_tokens for each in columns[0]):.0f}"
    decoded = [median(each.prompt_tokens - each.reused_tokens for each in column) for column in columns]
    compression = [sum(each.tokens for each in column) / sum(each.steps for each in column) for column in columns]
    first = [median(each.first_token_s for each in column) for column in columns]
    speed = [median(each.tokens_per_second for each in column) for column in columns]
    pairs = [[other.seconds / kept.seconds for kept, other in zip(ways[0], way, strict=True)] for way in ways[1:]]
    return [
        prompt,
        " / ".join(f"{value:.0f}" for value in decoded),
        " / ".join(f"{value:.2f}" for value in compression),
        " / ".join(f"{ms(value):.1f}" for value in first),
        " / ".join(f"{value:.0f}" for value in speed),
        " / ".join(f"{median(values):.2f}" for values in pairs),
    ]


def again(bench: Bench) -> Iterator[list[str]]:
    """After each answer another one to the same question; at temperature 0.8 with another seed."""
    yield ["mode", "temperature", "S of the answers", *(f"S of /regen: {name}" for name in MEMORIES), "ratio", "same"]
    for (mode, decode_settings), temp in product(bench.modes.items(), (0.0, 0.8)):
        if decode_settings.mode == "plain":
            continue
        held: dict[str, list[list[Answer]]] = {name: [] for name in MEMORIES}
        for seed, questions in product(range(bench.repeats if temp else 1), bench.conversations):
            sampling = SamplingSettings(temp=temp, seed=seed) if temp else GREEDY
            for name, kind in MEMORIES.items():
                held[name].append(answered_twice(bench.chat(kind, decode_settings, sampling), questions))
        forgotten, known = held.values()
        ratios = [compression(new[1::2]) / compression(old[1::2]) for old, new in zip(forgotten, known, strict=True)]
        spread = 2 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        same = sum(
            [answer.tokens for answer in old] == [answer.tokens for answer in new]
            for old, new in zip(forgotten, known, strict=True)
        )
        firsts = [answer for answers in forgotten for answer in answers[::2]]
        seconds = [[answer for answers in found for answer in answers[1::2]] for found in held.values()]
        cells = [f"{compression(answers):.2f}" for answers in (firsts, *seconds)]
        yield [mode, f"{temp:g}", *cells, f"{mean(ratios):.2f} ± {spread:.2f}", f"{same} of {len(ratios)}"]


def answered_twice(chat: Chat, questions: Sequence[str]) -> list[Answer]:
    """Each question's answer, and the one that /regen gives in its place."""
    answers = []
    for turn, question in enumerate(questions):
        answers.append(timed_turn(chat, chat.ask(question)).answer)
        if chat.settings.sampling.temp:
            seed = chat.settings.sampling.seed + 1000 * (turn + 1)
            chat.change(chat.settings.with_values({"seed": seed}))
        answers.append(timed_turn(chat, chat.again()).answer)
    return answers


def compression(answers: Sequence[Answer]) -> float:
    return sum(each.statistics.tokens for each in answers) / sum(each.statistics.steps for each in answers)


def overhead(bench: Bench) -> Iterator[list[str]]:
    """Milliseconds of a question by the tokens before it; for scale a plain step, and a prefill of all of them."""
    learning = [f"learn, {name}: {way}" for name in ("lookup", "15/5/15") for way in ("kept", "anew")]
    yield ["tokens", "template", "tokenize", "cut back", "and for /regen", *learning, "plain step", "prefill"]
    for size in bench.sizes:
        tokens, times = overhead_of(bench, history(bench, size))
        yield [str(tokens), *(f"{ms(value):.2f}" for value in times)]


def overhead_of(bench: Bench, messages: list[dict[str, str]]) -> tuple[int, list[float]]:
    """The tokens before the last question, and the seconds of each column."""
    prompts = PromptTokens(bench)
    asked = prompts.prompt(messages[:-2])
    answer = bench.model.tokenize(messages[-2]["content"], add_special=False)
    prompts.answered(asked, answer)
    text, prompt = [*asked.tokens, *answer], prompts.prompt(messages).tokens
    rendering = median(timed(lambda: bench.prompts.render(messages)) for _ in range(bench.repeats))
    spelling = median(timed(lambda: prompts.prompt(messages)) for _ in range(bench.repeats))
    decoder = bench.chat(Decoder, LARGE, GREEDY).session.decoder
    times = [rendering, spelling - rendering, *cutting(decoder, text, prompt, bench.repeats)]
    for new in (partial(Lookup, LARGE), partial(lookahead, bench)):
        times += learning_times(new, text, prompt, bench.repeats)
    plain = bench.chat(Decoder, MODES["plain"], GREEDY).session.decoder
    steps = [*plain.generate(prompt, 8)]
    return len(text), [*times, median(step.seconds for step in steps), plain.prompt_s]


def lookahead(bench: Bench) -> Lookahead:
    pool = NgramPool(LARGE.ngram, LARGE.guesses)
    return Lookahead(LARGE, pool, bench.engine.vocabulary, bench.engine.is_end)


def history(bench: Bench, size: int) -> list[dict[str, str]]:
    """Questions with answers, at least `size` tokens in all, and a question behind them."""
    messages: list[dict[str, str]] = []
    for question in cycle(question for questions in bench.conversations for question in questions):
        messages.append({"role": "user", "content": question})
        if len(bench.prompts.conversation(messages)) > size and len(messages) > 1:
            return messages
        messages.append({"role": "assistant", "content": bench.conversations[0][0]})
    raise AssertionError("a cycle has no end")


def cutting(decoder: Decoder, text: list[int], prompt: list[int], repeats: int) -> tuple[float, float]:
    """Median seconds of the cut before the next question, and before an answer to the same one again."""
    asked, again = [], []
    for _ in range(repeats):
        list(decoder.generate(text, 1, reuse=True))
        asked.append(timed(lambda: decoder.cut_back(prompt)))
        list(decoder.generate(prompt, 48, reuse=True))
        again.append(timed(lambda: decoder.cut_back(prompt)))
    return median(asked), median(again)


def learning_times(new: Callable[[], Mode], text: list[int], prompt: list[int], repeats: int) -> tuple[float, float]:
    """Median seconds of learning a prompt by one that knows the text before it, and by one that knows nothing."""
    kept, anew = [], []
    for _ in range(repeats):
        mode = new()
        mode.begin(text)
        kept.append(timed(partial(mode.begin, prompt)))
        anew.append(timed(partial(new().begin, prompt)))
    return median(kept), median(anew)


def timed(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["turns", "again", "overhead"])
    parser.add_argument("--model", required=True, help="a GGUF file or a model's name")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help='JSONL rows {"class": ..., "prompt": ...}')
    parser.add_argument("--pasted", action="store_true", help="each question shows the code again")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--strict", action="store_true", help="texts must not depend on what is kept")
    parser.add_argument("--each", type=int, default=6, help="conversations")
    parser.add_argument("--tokens", type=int, default=160, help="tokens an answer may have")
    parser.add_argument("--repeats", type=int, default=3, help="times, or seeds of again")
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[200, 1000, 2000], help="tokens before overhead's question"
    )
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with Bench(arguments) as bench:
        print_table({"turns": turns, "again": again, "overhead": overhead}[arguments.what](bench))


if __name__ == "__main__":
    main()
