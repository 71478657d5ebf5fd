"""Text from ids, one at a time, and stop strings."""

from vf_pipeline.tokens.detokenize import StopCutter, TextStream, cut_at_stop


def test_text_waits_for_whole_characters() -> None:
    data = "aé€".encode()

    def decode(ids: "list[int] | tuple[int, ...]") -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    stream = TextStream(decode)
    assert [stream.push(byte) for byte in data] == ["a", "", "é", "", "", "€"]
    assert (stream.push(0xC3), stream.finish()) == ("", "\ufffd")


def test_stop_strings_are_cut_and_held_back() -> None:
    assert cut_at_stop("one two", ["two", "ne"]) == "o"
    assert cut_at_stop("one", ["x", ""]) is None
    cutter = StopCutter(["END"])
    assert [cutter.push(t) for t in ("ab", "cE", "N", "x", "EN", "D", "more")] == [
        *("ab", "c", "", "ENx"),
        *("", "", ""),
    ]
    assert cutter.stopped
    cutter = StopCutter(["END"])
    assert (cutter.push("aEN"), cutter.finish()) == ("a", "EN")
