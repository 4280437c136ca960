"""A model's prompts: conversations as its chat template's text and as tokens, and the text of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from lacli.errors import PromptError, UsageError
from lacli.llamacpp.model import LlamaModel
from lacli.text.reasoning import mark_reasoning, markers_in
from lacli.text.stream import Piece
from lacli.text.template import CALL_MARKERS, MARK, ChatTemplate, ControlNames, Messages, as_messages, with_one_bos


class PromptWriter:
    """Writes prompts for a model in its chat template."""

    def __init__(self, model: LlamaModel, template: ChatTemplate) -> None:
        self._model, self.template = model, template
        reasoning = self._single_tokens(markers_in(template.source))
        self._reasoning_names = {self.text([token], special=True) for token in reasoning}
        self._markers = reasoning | self._single_tokens(CALL_MARKERS)

    def question(
        self, question: str, system: str = "", *, raw: bool = False, history: Sequence[tuple[str, str]] = ()
    ) -> list[int]:
        """Return the tokens of a question, with the earlier questions and answers of `history`, in the chat template.

        `raw`: join the texts by empty lines instead. Raises PromptError if the question is empty or the template fails.
        """
        if not question.strip():
            raise PromptError("the prompt is empty", "give some text")
        if raw or self.template.stands_in:
            before = [part for exchange in history for part in exchange]
            return self._model.tokenize("\n\n".join([*([system] if system else []), *before, question]))
        return self.conversation(as_messages(question, system, history))

    def conversation(self, messages: Messages) -> list[int]:
        """Return the tokens of a conversation up to its next answer. Raises PromptError if the template fails."""
        return self.tokenize(self.render(messages))

    def render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]] = (), variables: Mapping[str, object] | None = None
    ) -> str:
        """Return a conversation as text of the template, for `tokenize`.

        `tools`: the functions that the model may call. `variables`: replace the template's variables of these names.
        Names of control tokens in messages and `tools` are marked. Raises PromptError if the template fails.
        """
        marked = [
            {
                **{name: value if name == "role" else self._all_marked(value) for name, value in message.items()},
                "content": self.marked(message["content"], message["role"]),
            }
            for message in messages
        ]
        template = self.template
        if variables:
            template = replace(template, variables={**template.variables, **variables})
        rendered = template.render(marked, [self._all_marked(tool) for tool in tools])
        return with_one_bos(rendered, self._model.bos(), adds_bos=self._model.adds_bos)

    def marked(self, content: str, role: str) -> str:
        """Return a message with names of control tokens marked as text, except an answer's tags around reasoning."""
        if role != "assistant" or not self._reasoning_names:
            return self._control_names.marked(content)
        pieces = mark_reasoning([Piece(content)])
        return "".join(
            self._control_names.marked(piece.text, self._reasoning_names if piece.reasoning else ()) for piece in pieces
        )

    def _all_marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._control_names.marked(value)
        if isinstance(value, Mapping):
            return {self._control_names.marked(key): self._all_marked(each) for key, each in value.items()}
        return [*map(self._all_marked, value)] if isinstance(value, list) else value

    def tokenize(self, rendered: str, *, add_special: bool = True) -> list[int]:
        """Return the tokens of a `render` result; marked names stay text. `add_special`: begin with BOS if needed."""
        tokens: list[int] = []
        for place, (span, is_marked) in enumerate(self._control_names.spans(rendered)):
            begins = add_special and not place
            if is_marked:
                tokens += [*(self._model.tokenize("") if begins else ()), *self._plain_tokens(span)]
            else:
                tokens += self._model.tokenize(span, add_special=begins)
        return tokens

    def infill(
        self, before: str, after: str, max_tokens: int, begun: str = "", files: Sequence[tuple[str, str]] | None = None
    ) -> list[int]:
        """Return the tokens of a prompt for the text between `before` and `after`, in llama-server's form.

        `max_tokens`: the most tokens; text far from the gap is left out. `begun`: the beginning of the text in the gap.
        `files`: names and texts of other files; None: no file names. Raises UsageError if the model cannot infill.
        """
        marks, plain, others = self._model.infill_tokens, self._plain_tokens, list[int]()
        if not {"pre", "suf", "mid"} <= marks.keys():
            raise UsageError("this model's vocabulary has no tokens for infilling", "Qwen2.5-Coder has them")
        if files is not None and "sep" in marks:
            others += [marks["rep"], *plain("myproject\n")] if "rep" in marks else []
            files = [*files, ("filename", "")]
        for name, text in files or ():
            heading = [marks["sep"], *plain(f"{name}\n")] if "sep" in marks else plain("\n\n--- snippet ---\n\n")
            others += [*heading, *plain(text)]
        # As llama-server's, three of four tokens are from before the hole.
        quarter = min(self._model.settings.batch, max_tokens) // 4
        start, first, last = self._cut(begun), plain(before), plain(after)
        first = [*first[max(len(first) - 3 * quarter, 0) :], *start]
        last = last[: max(quarter - 3 - len(start), 0)]
        hole = [*self._model.tokenize(""), marks["pre"], *first, marks["suf"], *last, marks["mid"]]
        return others[max(len(others) + len(hole) - max_tokens, 0) :] + hole

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens; control tokens, such as end tokens, have text only with `special`."""
        pieces = (self._model.piece(token, special=True) if special else self.piece(token) for token in tokens)
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token's text. Control tokens have none, except marks of reasoning and tool calls."""
        return self._model.piece(token, special=token in self._markers)

    def control_tokens(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the control tokens whose names occur in `texts`, with the names, if `piece` gives them no text."""
        tokens = {token for text in texts for token in self._cut(text)}
        return {token: name for token in tokens if not self.piece(token) and (name := self.text([token], special=True))}

    def _cut(self, text: str) -> list[int]:
        return self._model.tokenize(text, add_special=False)

    def _single_tokens(self, markers: Iterable[str]) -> set[int]:
        return {tokens[0] for tokens in map(self._cut, markers) if len(tokens) == 1}

    def _plain_tokens(self, span: str) -> list[int]:
        tokens = self._model.tokenize(span.replace(MARK, ""), add_special=False, special=False)
        if all(map(self._model.piece, tokens)):
            return tokens
        # The tokenizer may still join the pieces of a name to its control token, so each piece is tokenized alone.
        parts = (self._model.tokenize(part, add_special=False, special=False) for part in span.split(MARK))
        return [token for part in parts for token in part]

    @cached_property
    def _control_names(self) -> ControlNames:
        return ControlNames(self._model.control_tokens)
