"""Chat templates, compiled and rendered by Jinja within bounds of time and memory.

A template comes in a model's file, so from a stranger. Jinja's sandbox keeps it from the machine, not from endless
loops and gigabytes: here every loop, call and value of a template is counted. What a conversation is, and which
template writes it, is `template.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from datetime import datetime
from functools import partial, wraps
from math import inf
from string import Formatter
from threading import Lock
from time import thread_time
from types import GeneratorType
from typing import Any, NoReturn

from jinja2 import BaseLoader, TemplateSyntaxError, nodes, pass_context, pass_eval_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as ALL_FILTERS
from jinja2.filters import (
    do_batch,
    do_indent,
    do_join,
    do_round,
    do_title,
    do_trim,
    do_unique,
    do_wordcount,
    make_attrgetter,
    sync_do_slice,
)
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from lacli.errors import PromptError

MOST_SOURCE = 1 << 16
"""Characters of a template: the longest of llama.cpp's models/templates has a third of it.

Compiling this many takes up to two seconds.
"""

MOST_SECONDS, MOST_SECONDS_A_BYTE = 1.0, 20e-6
"""Processor time of one rendering, and more of it for a long conversation.

The templates in tests/templates take 0.05 ms for a question; the slowest one, which looks at each character of an
answer, takes 8 microseconds for it (measured on one core of a Xeon).
"""

MOST_BYTES, MOST_TIMES = 1 << 24, 256
"""Bytes of all that one rendering makes, the text that is thrown away too, and how often a conversation may be copied.

A list with all in it has the same limit; what occurs twice in it counts twice, for its text would have it twice.
"""

SECONDS_A_COMPARISON = 1e-9
"""Processor time of comparing one character in SEARCHES: up to 0.25 nanoseconds on a Xeon, more on a slow machine."""

MOST_BITS = 4096
"""Bits of a whole number; the powers of larger ones never end."""

CELL = 64
"""Bytes that an element of a list is counted as."""

STEPS = 16
"""Operations between two looks at the clock."""

FILTERS = (
    *("abs", "attr", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first"),
    *("float", "forceescape", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower"),
    *("map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select"),
    *("selectattr", "slice", "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper"),
    *("urlencode", "wordcount"),
)
"""Jinja's filters without those that make much of little (center, format, striptags ...), which no chat needs."""

NOT_PLAIN = re.compile("%(?![dirs])")
"""What `%` could make a long text of, or take from a dictionary again and again; %% is to be taken out before."""

MOST_DIGITS = 300
"""Digits that a number is rounded to, either side of the point: a float has no more."""

METHODS = frozenset(
    (
        *("capitalize", "casefold", "copy", "count", "endswith", "find", "get", "index", "isalnum", "isalpha"),
        *("isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "items", "join"),
        *("keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title"),
        *("upper", "values"),
    )
)
"""Methods of texts, lists and dictionaries that a template may call; chosen as FILTERS are."""

SEARCHES = frozenset(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"))
"""Methods of texts that may compare each character with each one of an argument; those that find from the left do not.

Such a call hears neither the clock nor Ctrl-C.
"""

VARIABLES = ("_loop_vars", "_block_vars")
"""What compiled templates give to a call beside its arguments."""

BUILT_IN = (str, bytes, int, float, list, tuple, dict)

CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)

MADE, JOINED, EACH = "<made>", "<joined>", "<each>"
"""Filters that the compiler puts around a template's expressions; no template can name them."""

REFUSED = "give another with --chat-template; lacli run goes without one by --raw"


def compile_template(source: str, bos: str, eos: str) -> Callable[..., str]:
    """A Jinja chat template as a function of `messages` and variables of its own. Raises PromptError when it is broken.

    Rendering raises PromptError where a bound is met, and whatever the template raises.
    """
    try:
        if len(source) > MOST_SOURCE:
            raise ValueError(f"it has {len(source)} characters, and {MOST_SOURCE} are allowed")
        environment = _Environment()
        template = environment.from_string(source)
    except Exception as error:  # whatever Jinja raises, the template is at fault
        reason = " ".join(str(getattr(error, "message", None) or error).split()).rstrip(".") or type(error).__name__
        where = f" in line {line}" if (line := getattr(error, "lineno", 0)) else ""
        raise PromptError(f"the chat template is broken{where}: {reason}", REFUSED) from error

    def render(messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        given = {"messages": messages, "bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
        with environment.counting:
            environment.begin((messages, variables))
            return template.render({**DEFAULTS, **variables, **given})

    return render


def _raise(message: object) -> NoReturn:
    raise ValueError(str(message)[:200])


def _now(form: str) -> str:
    # The C library tries buffers of up to 256 times its length.
    return datetime.now().strftime(form[:256])


DEFAULTS: dict[str, object] = {
    **{name: None for name in ("tools", "tool_choice", "functions", "function_call")},
    "raise_exception": _raise,
    "strftime_now": _now,
}
"""What templates expect of transformers beside the conversation, and what a user may give otherwise."""


class _Namespace(Namespace):
    """A namespace whose text does not hold what is in it: it can grow after it was put into a list."""

    def __repr__(self) -> str:
        return "<namespace>"


class _GenerationTags(Extension):
    """Take what stands between transformers' marks of an answer as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counted(NodeTransformer):
    """Puts the environment's counting filters around what the sandbox does not ask about."""

    def visit_List(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE)

    visit_Dict = visit_Compare = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if node.ctx == "load" else node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.name in ALL_FILTERS and node.name not in FILTERS:
            # Jinja says the name of a filter that is missing, while it compiles or where the filter is first needed.
            node.name += ", which is not allowed in a chat template"
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), JOINED)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, EACH, nodes.Const(_plain_text(node)))
        return node


def _filtered(node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _plain_text(node: nodes.Node) -> int:
    """Bytes that a node writes as they stand in the template, each part once."""
    return sum(sys.getsizeof(data.data) for data in node.find_all(nodes.TemplateData))


def _size(value: Any, most: float = inf) -> int:
    """Bytes of a value with all in it. Raises PromptError as soon as there are more than `most`."""
    size, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        size += CELL
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, int):
            size += each.bit_length() // 3  # a digit for each three bits at most
        elif isinstance(each, dict):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, CONTAINERS):
            waiting += each
        if size > most:
            raise PromptError("the chat template takes too much memory", REFUSED)
    return size


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of one template, which counts what a rendering does from `begin` on.

    counting: held while a template is rendered, for there is one count.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        # What Jinja computes while it compiles would be in every loop uncounted.
        super().__init__(
            loader=BaseLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self._shown,
            extensions=[_GenerationTags, loopcontrols],
        )
        known: dict[str, Any] = {
            **self.filters,
            "batch": self._in_lists(do_batch),
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "round": self._round,
            "slice": self._in_lists(sync_do_slice),
            "sum": self._sum,
            "title": self._title,
            "tojson": self._tojson,
            "trim": self._trim,
            "unique": self._unique,
            "wordcount": self._wordcount,
        }
        filters = {name: self._counted(known[name]) for name in FILTERS}
        self.filters = {**filters, MADE: self._made, JOINED: self._joined, EACH: self._each}
        tests: dict[str, Any] = {**self.tests}
        self.tests = {name: self._counted(test) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals.update(dict=self._dict, namespace=_Namespace)
        self.counting = Lock()
        self._text = 0
        self.begin(())

    def begin(self, given: Any) -> None:
        """Count anew, for a rendering of what is given."""
        size = _size(given)
        self._left = self._most = MOST_BYTES + MOST_TIMES * size
        self._steps = 0
        self._until = thread_time() + MOST_SECONDS + MOST_SECONDS_A_BYTE * size

    def call(self, context: Context, called: Any, /, *arguments: Any, **named: Any) -> Any:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, str) and name in ("replace", "join"):
            counted = self.filters["replace"] if name == "replace" else self._join_by
            return counted(owner, *arguments)
        if isinstance(owner, str) and name in ("split", "rsplit", "splitlines"):
            parts = owner.count(arguments[0]) if arguments and isinstance(arguments[0], str) else len(owner) // 2
            self._spend(CELL * parts)
        if isinstance(owner, str) and name in SEARCHES:
            self._check_search(owner, *arguments, *named.values())
        if isinstance(called, Macro | BlockReference):
            self._spend(self._text)
        if not isinstance(owner, BUILT_IN):
            # A macro keeps its arguments in a list.
            self._made((arguments, [value for name, value in named.items() if name not in VARIABLES]))
        return self._made(super().call(context, called, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            self._check_product(left, right, power=operator == "**")
        if operator == "%" and isinstance(left, str) and NOT_PLAIN.search(left.replace("%%", "")):
            raise ValueError("texts are formatted with %s, %d, %i and %r only")
        return self._made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        # Filters take items too: as many as an `attribute` names.
        self._step()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        known = attr in METHODS or not callable(value) or not isinstance(obj, BUILT_IN)
        return known and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return what takes the place of a text's `format`; `format_map` is refused like other methods."""
        wrapped = super().wrap_str_format(value)
        return partial(self._format, value.__self__) if wrapped and value.__name__ == "format" else None

    def _generate(self, source: nodes.Template, *others: Any, **more: Any) -> str:
        self._text = max(map(_plain_text, source.find_all((nodes.Macro, nodes.CallBlock, nodes.Block))), default=0)
        counted: str = super()._generate(_Counted().visit(source), *others, **more)
        return counted

    def _step(self, count: int = 1) -> None:
        before, self._steps = self._steps, self._steps + count
        if before // STEPS < self._steps // STEPS and thread_time() > self._until:
            raise PromptError("the chat template takes too long", REFUSED)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise PromptError("the chat template takes too much memory", REFUSED)
        self._step(1 + size // 4096)

    def _made(self, value: Any) -> Any:
        """Count a value, and refuse one that is too large to be written or compared; a generator is counted later."""
        if isinstance(value, str):
            self._spend(sys.getsizeof(value))
        elif isinstance(value, CONTAINERS):
            self._spend(CELL * len(value))
            self._step(_size(value, self._most) // CELL)
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise ValueError(f"a number has more than {MOST_BITS} bits")
        elif isinstance(value, GeneratorType):
            return self._each(value, 0)
        else:
            self._step()
        return value

    def _check_search(self, text: str, *arguments: Any) -> None:
        longest = max((len(each) for each in arguments if isinstance(each, str)), default=0)
        if thread_time() + len(text) * longest * SECONDS_A_COMPARISON > self._until:
            raise PromptError("the chat template takes too long", REFUSED)

    def _check_product(self, left: Any, right: Any, *, power: bool) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * (right if power else 1) + right.bit_length() > MOST_BITS:
                raise ValueError(f"a number has more than {MOST_BITS} bits")
            return
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                self._spend(max(times, 0) * len(many))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            return self._made(function(*arguments, **named))

        return counted

    @pass_context
    def _shown(self, _: Context, value: Any) -> str:
        return self._text_of(value)

    def _text_of(self, value: Any) -> str:
        text = value if isinstance(value, str) else str(value)
        self._spend(sys.getsizeof(text))
        return text

    def _joined(self, values: Iterable[Any]) -> str:
        return "".join([self._text_of(value) for value in values])

    def _each(self, values: Iterable[Any], text: int) -> Iterator[Any]:
        for value in values:
            self._spend(text)
            yield value

    def _join_by(self, text: str, values: Iterable[Any]) -> Any:
        listed = self._made(list(values))
        self._spend(sys.getsizeof(text) * len(listed))
        return self._made(text.join(listed))

    @pass_eval_context
    def _join(self, context: Any, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
        listed = self._made(list(value))
        self._spend(sys.getsizeof(str(d)) * len(listed))
        joined: str = do_join(context, listed, str(d), attribute)
        return joined

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._spend(sys.getsizeof(text) + text.count(old) * sys.getsizeof(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = str(value)
        self._spend((len(text.splitlines()) + 1) * (width if isinstance(width, int) else sys.getsizeof(width)))
        return do_indent(text, width, first, blank)

    def _trim(self, value: Any, chars: str | None = None) -> str:
        text = str(value)
        self._check_search(text, chars)
        return do_trim(text, chars)

    # Keys can be chosen so that each is compared with all before it.
    def _unique(self, value: Iterable[Any], case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
        unique: Iterator[Any] = do_unique(self, self._each(value, 0), case_sensitive, attribute)
        return unique

    def _dict(self, pairs: Any = (), /, **named: Any) -> dict[Any, Any]:
        return dict(pairs if isinstance(pairs, Mapping) else self._each(pairs, 0), **named)

    def _in_lists(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(value: Any, count: int, fill_with: Any = None) -> Any:
            self._spend(CELL * max(count, 0))
            return function(self._each(value, 0), count, fill_with)

        return counted

    def _round(self, value: Any, precision: int = 0, method: Any = "common") -> Any:
        if abs(precision) > MOST_DIGITS:
            raise ValueError(f"a number is rounded to more than {MOST_DIGITS} digits")
        return do_round(value, precision, method)

    def _sum(self, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        # Each sum is counted: those of lists are lists.
        for value in values if attribute is None else map(make_attrgetter(self, attribute), values):
            start = self._made(start + value)
        return start

    def _wordcount(self, value: Any) -> int:
        text = str(value)
        self._spend(CELL * len(text))
        return do_wordcount(text)

    def _title(self, value: Any) -> str:
        text = str(value)
        self._spend(CELL * len(text))
        return do_title(text)

    def _format(self, text: str, *arguments: Any, **named: Any) -> str:
        fields = [(field, *how) for _, field, *how in Formatter().parse(text) if field is not None]
        if any(any(how) or not f"_{field}".isidentifier() for field, *how in fields):
            raise ValueError("texts are formatted with plain fields only")
        texts = [self._text_of(each) for each in arguments]
        named_texts = {name: self._text_of(each) for name, each in named.items()}
        self._spend(len(text) + len(fields) * max(map(len, [*texts, *named_texts.values()]), default=0))
        return text.format(*texts, **named_texts)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if (indent or 0) > CELL or len("".join(separators or ())) > CELL:
            raise ValueError("tojson is asked for too much space")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        # Indented, a line is as long as it lies deep.
        return encoder.encode(value) if indent is None else self._joined(encoder.iterencode(value))
