"""Answers in tags: ``<reasoning>…</reasoning><answer>…</answer>``.

Deliberately no XML: models write tags around text that is not escaped.
"""

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from vf_pipeline.errors import ConfigError
from vf_pipeline.parsers.parser import Parser, identity
from vf_pipeline.types import Messages


class XMLParser(Parser):
    """Reads fields out of tags.

    Args:
        fields: names of the tags in their order; a tuple gives alternatives, the first of which
            is the name that ``format`` and the system prompt prefer.
        answer_field: the tag whose content is the answer.
        extract_fn: what is done to the content of the answer's tag.

    Raises:
        ConfigError: a field is no name, is empty, or stands there twice.

    Example:
        >>> import vf_pipeline as vf
        >>> parser = vf.XMLParser(["reasoning", ("answer", "result")])
        >>> read = parser.parse("<reasoning>6 × 7</reasoning> so <answer>42</answer>")
        >>> read.reasoning, read.answer, read.result
        ('6 × 7', '42', None)
        >>> parser.parse_answer([{"role": "assistant", "content": "<answer>42</answer>"}])
        '42'
        >>> print(parser.format(reasoning="6 × 7", answer=42))
        <reasoning>
        6 × 7
        </reasoning>
        <answer>
        42
        </answer>
    """

    def __init__(
        self,
        fields: Sequence[str | tuple[str, ...]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], Any] = identity,
    ) -> None:
        super().__init__(extract_fn)
        self.answer_field = answer_field
        self._fields = _checked_fields(fields)

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        """Return the content of every tag as attributes of a namespace; None where it is absent.

        Args:
            text: what the model wrote.
            strip: whether space around the content is dropped.
            last: whether the last of several equal tags counts; else the first.
        """
        names = [name for field in self._fields for name in field]
        return SimpleNamespace(**{name: _content(text, name, strip, last) for name in names})

    def parse_answer(self, completion: Messages) -> Any:
        """Return the answer's content: the last one written, in the last message that has one."""
        for text in reversed(self.assistant_texts(completion)):
            answer = _content(text, self.answer_field, strip=True, last=True)
            if answer is not None:
                return self.extract_fn(answer)
        return None

    def get_fields(self) -> list[str]:
        """Return the preferred name of each field."""
        return [field[0] for field in self._fields]

    def get_format_str(self) -> str:
        """Return the form to show to a model: every field on lines of its own."""
        shown = ("[ " + " | ".join(f) + " ]" if len(f) > 1 else f[0] for f in self._fields)
        return "\n".join(f"<{name}>\n...\n</{name}>" for name in shown)

    def format(self, **values: Any) -> str:
        """Return values written in tags, in the order of the fields.

        Raises:
            ConfigError: a field has no value, or a value no field.
        """
        lines = []
        for field in self._fields:
            name = next((name for name in field if name in values), None)
            if name is None:
                raise ConfigError(f"no value for field {field[0]!r}", f"give one of {list(field)}")
            lines.append(f"<{name}>\n{values.pop(name)}\n</{name}>")
        if values:
            raise ConfigError(f"no such field: {sorted(values)}", f"fields: {self.get_fields()}")
        return "\n".join(lines)

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return the mean over assistant messages of how well the form is kept, from 0 to 1.

        0.4 times the share of fields that are present, and 0.2 each for: fields that are readable
        with their spacing, a start with the first field's tag, an end with the last one's.
        """

        def xml_format_reward(completion: Messages) -> float:
            texts = self.assistant_texts(completion)
            return sum(map(self._form, texts)) / len(texts) if texts else 0.0

        return xml_format_reward

    def _form(self, text: str) -> float:
        read = vars(self.parse(text))
        present = sum(any(read[name] is not None for name in field) for field in self._fields)
        if not present:
            return 0.0
        trimmed = text.strip()
        starts = any(trimmed.startswith(f"<{name}>") for name in self._fields[0])
        ends = any(trimmed.endswith(f"</{name}>") for name in self._fields[-1])
        return 0.4 * present / len(self._fields) + 0.2 * (1 + starts + ends)


def _content(text: str, name: str, strip: bool, last: bool) -> str | None:
    # No opening tag inside: of "<a> … <a>2</a>" the content is 2, and the search stays linear.
    tag = re.escape(name)
    found: str | None = None
    for match in re.finditer(f"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.DOTALL):
        found = match[1]
        if not last:
            break
    return found.strip() if found is not None and strip else found


def _checked_fields(fields: Sequence[str | tuple[str, ...]]) -> list[tuple[str, ...]]:
    if isinstance(fields, str) or not fields:
        raise ConfigError(f"XMLParser needs a list of fields, got {fields!r}", 'fields=["answer"]')
    checked: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for field in fields:
        names = (field,) if isinstance(field, str) else tuple(field) if _listed(field) else ()
        if not names or not all(isinstance(n, str) and n.strip() for n in names):
            raise ConfigError(f"XMLParser field {field!r} is no name", "give a string or a tuple")
        again = [name for i, name in enumerate(names) if name in seen or name in names[:i]]
        if again:
            raise ConfigError(f"XMLParser field {again[0]!r} is given twice", "name each tag once")
        seen.update(names)
        checked.append(names)
    return checked


def _listed(field: object) -> bool:
    return isinstance(field, tuple | list)
