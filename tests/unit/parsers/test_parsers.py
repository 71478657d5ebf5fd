import pytest

from vf_pipeline.parsers import MaybeThinkParser, Parser, ThinkParser


def assistant(text):
    return {"role": "assistant", "content": text}


def user(text):
    return {"role": "user", "content": text}


def test_a_parser_reads_the_last_assistant_message():
    parser = Parser()
    completion = [assistant("first"), user("go on"), assistant("second"), user("thanks")]
    assert parser.parse_answer(completion) == "second"
    assert parser.parse_answer("plain text") == "plain text"


def test_a_conversation_without_an_assistant_has_no_answer():
    assert Parser().parse_answer([]) is None
    assert Parser().parse_answer([user("hello")]) is None


def test_messages_are_found_by_role():
    tool = {"role": "tool", "content": "4", "tool_call_id": "a"}
    system = {"role": "system", "content": "rules"}
    completion = [system, user("?"), assistant("!"), tool]
    parser = Parser()
    assert parser.get_system_messages(completion) == [system]
    assert parser.get_user_messages(completion) == [user("?")]
    assert parser.get_assistant_messages(completion) == [assistant("!")]
    assert parser.get_tool_messages(completion) == [tool]
    assert parser.get_user_messages("text") == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}], "b"),
        ([], ""),
    ],
)
def test_content_may_be_absent_or_in_parts(content, text):
    assert Parser().parse_answer([{"role": "assistant", "content": content}]) == text


def test_the_extraction_comes_last():
    assert Parser(extract_fn=str.upper).parse_answer([assistant("abc")]) == "ABC"
    assert ThinkParser(str.upper).parse("<think>x</think> abc") == "ABC"
    assert MaybeThinkParser(str.upper).parse("abc") == "ABC"


def test_the_plain_form_is_always_right():
    assert Parser().get_format_reward_func()(completion=[assistant("anything")]) == 1.0


@pytest.mark.parametrize(
    ("text", "required", "optional"),
    [
        ("<think>because</think>\n 42 ", "42", "42"),
        ("because</think>42", "42", "42"),  # the opening tag stood in the prompt
        ("<think>a</think>1<think>b</think>2", "2", "2"),
        ("42", "", "42"),
        ("<think>cut off at the limit 42", "", ""),
        ("<think>a</think>1<think>cut off", "1<think>cut off", ""),
        ("", "", ""),
    ],
)
def test_the_answer_follows_the_reasoning(text, required, optional):
    assert ThinkParser().parse(text) == required
    assert MaybeThinkParser().parse(text) == optional


def test_text_without_reasoning_stays_as_it_is():
    assert MaybeThinkParser().parse("  42\n") == "  42\n"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>a</think>b", 1.0),
        (" <think>\na\n</think>\nb\n", 1.0),
        ("<think>a</think>", 0.0),
        ("<think>a</think>  ", 0.0),
        ("b<think>a</think>c", 0.0),
        ("<think>a</think><think>b</think>c", 0.0),
        ("a</think>b", 0.0),
        ("b", 0.0),
    ],
)
def test_the_form_of_reasoning(text, reward):
    assert ThinkParser().get_format_reward_func()([assistant(text)]) == reward


def test_the_form_is_a_share_of_the_assistants_messages():
    form = ThinkParser().get_format_reward_func()
    good, bad = assistant("<think>a</think>b"), assistant("b")
    assert form([good, user("?"), bad, good, bad]) == 0.5
    assert form([user("?")]) == 0.0
    assert form("<think>a</think>b") == 1.0
