"""Chat templates, compiled and rendered by Jinja within bounds of time and memory.

A template comes in a model's file and so from a stranger. Jinja's sandbox keeps it from the machine, but not from
endless loops and gigabytes: here each operation is counted, and refused beforehand where its result could be too large.
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
from typing import Any, NoReturn

from jinja2 import BaseLoader, TemplateSyntaxError, nodes, pass_context, pass_eval_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as ALL_FILTERS
from jinja2.filters import do_join, do_unique, sync_do_sum
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from lacli.errors import PromptError

MAX_SOURCE = 1 << 16
"""Characters of a template: the longest of llama.cpp's models/templates has a third of it.

Compiling this many takes up to two seconds.
"""

MAX_SECONDS, MAX_SECONDS_A_BYTE = 1.0, 20e-6
"""Processor time of one rendering, and more of it for each byte of the conversation.

The templates in tests/text/templates take 0.05 ms for a question; the slowest one, which looks at each character of an
answer, takes 8 microseconds for it (measured on one core of a Xeon).
"""

MAX_BYTES, MAX_COPIES = 1 << 24, 256
"""Bytes of all values that one rendering makes, and how often it may copy the conversation besides.

A list with everything in it has the same limit; what occurs twice in it counts twice, for its text would have it twice.
"""

MAX_BITS = 4096
"""Bits of a whole number; the powers of larger ones never end."""

CELL = 64
"""Bytes that an element of a list is counted as."""

STEPS = 16
"""Operations between two looks at the clock."""

FILTERS = (
    "abs attr batch capitalize count d default dictsort e escape first float forceescape groupby indent int items"
    " join last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice"
    " sort string sum title tojson trim truncate unique upper urlencode wordcount"
)
"""Jinja's filters without those that make much of little (center, format, striptags ...), which no chat needs."""

METHODS = (
    "capitalize casefold copy count endswith find get index isalnum isalpha isascii isdecimal isdigit islower"
    " isnumeric isspace istitle isupper items join keys lower lstrip partition removeprefix removesuffix replace"
    " rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper values"
)
"""Methods of texts, lists and dictionaries that a template may call; chosen as FILTERS are."""

PRODUCTS = "indent join title trim wordcount lstrip rfind rindex rpartition rsplit rstrip strip"
"""Filters and methods whose memory or time can grow with the product of their arguments' sizes.

The searches from the right may compare each character with each one of an argument, and hear neither the clock nor
Ctrl-C meanwhile.
"""

AMOUNTS = ("batch", "indent", "round", "slice")
"""Filters that make as much as a number says."""

NOT_PLAIN = re.compile("%(?![dirs])")
"""What `%` could make a long text of, or take from a dictionary again and again; %% is to be taken out before."""

VARIABLES = ("_loop_vars", "_block_vars")
"""What compiled templates give to a call beside its arguments."""

BUILT_IN = (str, bytes, int, float, list, tuple, dict)

CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)

SIZED = (str, range, *CONTAINERS)

MADE, JOINED, EACH = "<made>", "<joined>", "<each>"
"""Filters that the compiler puts around a template's expressions; no template can name them."""

TIME, MEMORY, EITHER = "too long", "too much memory", "too much time or memory"

REFUSED = "give another with --chat-template; lacli run goes without one by --raw"


def compile_template(source: str, bos: str, eos: str) -> Callable[..., str]:
    """A Jinja chat template as a function of `messages` and variables of its own. Raises PromptError when it is broken.

    Rendering raises PromptError where a bound is met, and whatever the template raises.
    """
    try:
        if len(source) > MAX_SOURCE:
            raise ValueError(f"it has {len(source)} characters, and {MAX_SOURCE} are allowed")
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
    """A namespace whose text does not contain its values: it can grow after it was put into a list."""

    def __repr__(self) -> str:
        return "<namespace>"


class _GenerationTags(Extension):
    """Leave the text between transformers' marks of an answer as it is."""

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
        if node.name in ALL_FILTERS and node.name not in FILTERS.split():
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
    """Bytes of the template's own text in a node, each part counted once."""
    return sum(sys.getsizeof(data.data) for data in node.find_all(nodes.TemplateData))


def _size(value: Any, most: float = inf) -> int:
    """Bytes of a value with everything in it. Raises PromptError as soon as there are more than `most`."""
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
        elif isinstance(each, SIZED):
            waiting += each
        if size > most:
            raise _refusal(MEMORY)
    return size


def _refusal(what: str) -> PromptError:
    return PromptError(f"the chat template takes {what}", REFUSED)


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of one template, which counts what a rendering does from `begin` on.

    `counting`: held while a template is rendered, for there is one count.
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
        filters: dict[str, Any] = {
            **self.filters,
            "join": self._join,
            "replace": self._replace,
            "sum": self._sum,
            "tojson": self._tojson,
            "unique": self._unique,
        }
        tests: dict[str, Any] = {**self.tests}
        self.filters = {name: self._counted(name, filters[name]) for name in FILTERS.split()}
        self.filters.update({MADE: self._made, JOINED: self._joined, EACH: self._each})
        self.tests = {name: self._counted(name, test) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals.update(dict=self._dict, namespace=_Namespace)
        self.counting = Lock()
        self._methods, self._products = METHODS.split(), PRODUCTS.split()
        self._text = 0
        self.begin(())

    def begin(self, given: Any) -> None:
        """Count anew, for a rendering of what is given."""
        size = _size(given)
        self._left = self._most = MAX_BYTES + MAX_COPIES * size
        self._steps = 0
        self._until = thread_time() + MAX_SECONDS + MAX_SECONDS_A_BYTE * size

    def call(self, context: Context, called: Any, /, *arguments: Any, **named: Any) -> Any:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        given = [value for key, value in named.items() if key not in VARIABLES]
        if isinstance(owner, str) and name == "replace":
            called, arguments = self._replace, (owner, *arguments)
        elif isinstance(owner, str):
            if name == "join":
                arguments = tuple(self._made(list(each)) for each in arguments)
            self._foresee(name, owner, *arguments, *given)
        elif isinstance(called, Macro | BlockReference):
            self._spend(self._text)
        if not isinstance(owner, BUILT_IN):
            # A macro keeps its arguments in a list.
            self._made((arguments, given))
        return self._made(super().call(context, called, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            self._foresee_product(left, right, power=operator == "**")
        if operator == "%" and isinstance(left, str) and NOT_PLAIN.search(left.replace("%%", "")):
            raise ValueError("texts are formatted with %s, %d, %i and %r only")
        return self._made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        # Filters take items too: as many as an `attribute` names.
        self._step()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        known = attr in self._methods or not callable(value) or not isinstance(obj, BUILT_IN)
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
            raise _refusal(TIME)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _refusal(MEMORY)
        self._step(1 + size // 4096)

    def _made(self, value: Any) -> Any:
        """Count a value, and refuse one that is too large to be written or compared; an iterator is counted later."""
        if isinstance(value, str):
            self._spend(sys.getsizeof(value))
        elif isinstance(value, CONTAINERS):
            self._spend(CELL * len(value))
            self._step(_size(value, self._most) // CELL)
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ValueError(f"a number has more than {MAX_BITS} bits")
        elif isinstance(value, Iterator):
            return self._each(value, 0)
        else:
            self._step()
        return value

    def _foresee(self, name: str, *arguments: Any) -> None:
        """Refuse a filter or a method whose result or work could be larger than what is left."""
        sized = [each for each in arguments if isinstance(each, SIZED)]
        amount = sum(abs(each) for each in arguments if isinstance(each, int)) if name in AMOUNTS else 0
        if name in self._products:
            *others, largest = sorted(_size(each, self._left) - CELL for each in sized) or [0]
            most = (CELL + largest) * (CELL + sum(others) + amount)
        else:
            most = CELL * (sum(map(len, sized)) + amount)
        if most > self._left:
            raise _refusal(EITHER)

    def _foresee_product(self, left: Any, right: Any, *, power: bool) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * (right if power else 1) + right.bit_length() > MAX_BITS:
                raise ValueError(f"a number has more than {MAX_BITS} bits")
            return
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                self._spend(max(times, 0) * len(many))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            self._foresee(name, *arguments, *named.values())
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

    @pass_eval_context
    def _join(self, context: Any, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
        listed = self._made(list(value))
        self._foresee("join", listed, d)
        joined: str = do_join(context, listed, d, attribute)
        return joined

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._spend(sys.getsizeof(text) + text.count(old) * sys.getsizeof(new))
        return text.replace(old, new, -1 if count is None else count)

    # Keys can be chosen so that each is compared with all before it.
    def _unique(self, value: Iterable[Any], case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
        unique: Iterator[Any] = do_unique(self, self._each(value, 0), case_sensitive, attribute)
        return unique

    def _dict(self, pairs: Any = (), /, **named: Any) -> dict[Any, Any]:
        return dict(pairs if isinstance(pairs, Mapping) else self._each(pairs, 0), **named)

    def _sum(self, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        if not isinstance(start, int | float):
            raise ValueError("only numbers are added up")
        return sync_do_sum(self, values, attribute, start)

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
        return self._joined(encoder.iterencode(value))
