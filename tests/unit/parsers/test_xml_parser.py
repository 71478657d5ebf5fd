import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf_pipeline.errors import ConfigError
from vf_pipeline.parsers import XMLParser

PARSER = XMLParser(["reasoning", ("answer", "code")])
WHOLE = "<reasoning>\nwhy\n</reasoning>\n<answer>\n42\n</answer>"


def assistant(text):
    return {"role": "assistant", "content": text}


def test_every_tag_is_an_attribute():
    parsed = PARSER.parse(WHOLE)
    assert (parsed.reasoning, parsed.answer, parsed.code) == ("why", "42", None)
    assert PARSER.parse(WHOLE, strip=False).answer == "\n42\n"
    assert PARSER.parse("<code>print()</code>").code == "print()"


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("<answer>1</answer> no wait <answer>2</answer>", "1", "2"),
        ("<answer> I mean <answer>2</answer>", "2", "2"),
        ("<answer>1</answer> and <answer>cut", "1", "1"),
        ("<answer>cut", None, None),
        ("</answer>1<answer>", None, None),
        ("<answer></answer>", "", ""),
        ("<answer>a < b</answer>", "a < b", "a < b"),
        ("<answers>1</answers>", None, None),
    ],
)
def test_the_first_or_the_last_of_equal_tags(text, first, last):
    assert PARSER.parse(text).answer == first
    assert PARSER.parse(text, last=True).answer == last
    assert PARSER.parse_answer(text) == last
    assert PARSER.parse_answer([assistant(text)]) == last


def test_the_answer_is_in_the_last_message_that_has_one():
    completion = [assistant("<answer>1</answer>"), assistant("<answer>2</answer>"), assistant("ok")]
    assert PARSER.parse_answer(completion) == "2"
    assert PARSER.parse_answer([assistant("nothing")]) is None
    assert PARSER.parse_answer([]) is None


def test_another_field_may_be_the_answer_and_is_extracted_from():
    parser = XMLParser(["guess"], answer_field="guess", extract_fn=int)
    assert parser.parse_answer("<guess> 7 </guess>") == 7


def test_the_form_is_shown_and_written():
    assert PARSER.get_fields() == ["reasoning", "answer"]
    assert PARSER.get_format_str() == (
        "<reasoning>\n...\n</reasoning>\n<[ answer | code ]>\n...\n</[ answer | code ]>"
    )
    assert PARSER.format(reasoning="why", answer=42) == WHOLE
    assert PARSER.format(code="x", reasoning="why").endswith("<code>\nx\n</code>")


def test_values_and_fields_must_fit():
    with pytest.raises(ConfigError, match="no value for field 'answer'"):
        PARSER.format(reasoning="why")
    with pytest.raises(ConfigError, match="no such field"):
        PARSER.format(reasoning="why", answer="42", note="x")


@pytest.mark.parametrize(
    "fields", [[], "answer", [""], [()], [3], ["a", "a"], ["a", ("b", "a")], [("a", "a")], [None]]
)
def test_wrong_fields_are_refused(fields):
    with pytest.raises(ConfigError):
        XMLParser(fields)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (WHOLE, 1.0),
        ("<reasoning>a</reasoning><code>b</code>", 1.0),
        ("<answer>b</answer>", 0.2 + 0.2 + 0.2),  # half of the fields, the form's end
        (f"Sure! {WHOLE}", 0.8),
        (f"{WHOLE} Bye.", 0.8),
        ("no tags at all", 0.0),
        ("", 0.0),
    ],
)
def test_the_form_of_one_message(text, reward):
    assert PARSER.get_format_reward_func()([assistant(text)]) == pytest.approx(reward)


def test_the_form_is_a_mean_over_messages():
    form = PARSER.get_format_reward_func()
    assert form([assistant(WHOLE), assistant("none")]) == pytest.approx(0.5)
    assert form([]) == 0.0


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), max_size=40)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_what_is_written_is_read_again(values):
    parser = XMLParser(list(values), answer_field=next(iter(values)))
    text = parser.format(**values)
    expected = {name: value.strip() for name, value in values.items()}
    assert vars(parser.parse(text)) == expected
    assert vars(parser.parse(text, last=True)) == expected
    assert parser.parse_answer(text) == expected[parser.answer_field]
    assert parser.get_format_reward_func()(text) == pytest.approx(1.0)


@given(st.text(st.sampled_from("<>/answer 1\n"), max_size=60))
def test_any_text_can_be_read(text):
    answer = PARSER.parse_answer(text)
    assert answer is None or answer in text
