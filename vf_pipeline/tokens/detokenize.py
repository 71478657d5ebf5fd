"""Text from ids, one id at a time: for streaming, and for stop strings."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\ufffd"


class TextStream:
    """The text of a growing list of ids.

    A character may take several ids, and an id's text may depend on the one before it: a small
    window is decoded again, and text that ends in half a character waits for the rest.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._window = 0
        self._told = 0
        self.text = ""

    def push(self, token_id: int) -> str:
        """Take the next id; return the text it adds."""
        self._ids.append(token_id)
        return self._advance(whole=False)

    def finish(self) -> str:
        """Return the text that still waited for more ids."""
        return self._advance(whole=True)

    def _advance(self, whole: bool) -> str:
        # The window starts one told piece early: decoders treat a text's first token apart (some
        # drop its space). Both texts start alike, so that their difference is what is new.
        before = self._decode(self._ids[self._window : self._told])
        after = self._decode(self._ids[self._window :])
        # Nothing new: a special token that is skipped. U+FFFD: half a character, or one that the
        # model meant, which is told with the next token or at the end.
        if len(after) <= len(before) or (after.endswith(_UNFINISHED) and not whole):
            return ""
        self._window, self._told = self._told, len(self._ids)
        added = after[len(before) :]
        self.text += added
        return added


class StopCutter:
    """Streams text up to a stop string: text that may be its beginning is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [s for s in stop if s]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take more text; return what can be shown."""
        if self.stopped:
            return ""
        self._held += text
        cut = cut_at_stop(self._held, self._stop)
        if cut is not None:
            self.stopped = True
            self._held = ""
            return cut
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        sure = len(self._held) - keep
        shown, self._held = self._held[:sure], self._held[sure:]
        return shown

    def finish(self) -> str:
        """Return what was held back and turned out to be no stop string."""
        shown, self._held = self._held, ""
        return shown


def cut_at_stop(text: str, stop: Sequence[str]) -> str | None:
    """Return the text before the first stop string, or None if there is none."""
    places = [place for s in stop if s and (place := text.find(s)) >= 0]
    return text[: min(places)] if places else None


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that ``stop`` begins with."""
    # One less than the stop string: the whole of it would have been cut already.
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
