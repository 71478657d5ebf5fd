import asyncio
import json

import pytest

from vf_pipeline.errors import ConfigError, ProviderError
from vf_pipeline.testing import EchoEnvironment, FakeClient, Reply, make_tiny_model

ASK = [{"role": "user", "content": "two words"}]


def chat(client, n=1, **kwargs):
    return asyncio.run(client.chat.completions.create(model="m", messages=ASK, n=n, **kwargs))


def complete(client, prompt, n=1):
    return asyncio.run(client.completions.create(model="m", prompt=prompt, n=n))


def contents(response):
    return [choice.message.content for choice in response.choices]


def test_replies_come_in_turn_and_again_from_the_start():
    client = FakeClient(["a", "b", "c"])
    assert contents(chat(client, n=2)) == ["a", "b"]
    assert contents(chat(client, n=2)) == ["c", "a"]


def test_the_answers_are_openais_own():
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    response = chat(FakeClient(["one two three"]), n=2)
    assert isinstance(response, ChatCompletion)
    assert [c.index for c in response.choices] == [0, 1]
    assert [c.finish_reason for c in response.choices] == ["stop", "stop"]
    assert response.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
    }
    text = complete(FakeClient([Reply("x", "length")]), "one prompt here")
    assert isinstance(text, Completion)
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("x", "length")
    assert text.usage.prompt_tokens == 3
    assert complete(FakeClient(["x"]), [5, 6, 7, 8]).usage.prompt_tokens == 4


def test_a_function_sees_the_prompt():
    client = FakeClient(lambda prompt: str(prompt))
    assert contents(chat(client)) == [str(ASK)]
    assert complete(client, "text").choices[0].text == "text"


def test_exceptions_are_raised_in_turn():
    client = FakeClient(["a", ProviderError("gone")])
    assert contents(chat(client)) == ["a"]
    with pytest.raises(ProviderError, match="gone"):
        chat(client)
    assert contents(chat(client)) == ["a"]
    with pytest.raises(ValueError, match="no"):
        chat(FakeClient(lambda prompt: ValueError("no")))


def test_tool_calls_can_be_scripted():
    reply = Reply("", "tool_calls", (("add", '{"a": 1}'), ("sub", "{}")))
    (choice,) = chat(FakeClient([reply])).choices
    calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    assert calls == [("call-0", "add", '{"a": 1}'), ("call-1", "sub", "{}")]
    assert choice.finish_reason == "tool_calls"


def test_requests_are_kept_as_they_were():
    client = FakeClient(["a"])
    messages = [{"role": "user", "content": "x"}]
    asyncio.run(client.chat.completions.create(model="m", messages=messages, temperature=0))
    messages.clear()
    assert client.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "n": 1,
            "temperature": 0,
        }
    ]


def test_answers_take_their_time_side_by_side():
    async def many():
        async with FakeClient(["a"], latency_s=0.02) as client:
            create = client.chat.completions.create
            await asyncio.gather(*(create(model="m", messages=ASK) for _ in range(5)))
            return client.most_in_flight

    assert asyncio.run(many()) == 5


def test_a_client_needs_replies_and_lists_its_model():
    with pytest.raises(ConfigError):
        FakeClient([])
    page = asyncio.run(FakeClient(["a"]).models.list())
    assert [model.id for model in page.data] == ["fake"]


@pytest.mark.parametrize(("text", "reward"), [("echo 0", 1.0), ("echo 1", 0.0)])
def test_the_echo_rewards_its_own_question(text, reward):
    env = EchoEnvironment(num_examples=3)
    assert [e.answer for e in env.examples("eval")] == ["echo 0", "echo 1", "echo 2"]
    example = env.examples("eval")[0]

    async def play():
        row = {"prompt": example.prompt, "answer": example.answer}
        return await env.rubric.score(await env.rollout(row, FakeClient([text]), "fake"))

    assert asyncio.run(play()).reward == reward
    assert env.env_id == "echo"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return folder, make_tiny_model(folder)


def test_the_tiny_model_is_the_same_for_the_same_seed(tiny, tmp_path):
    folder, ref = tiny
    again = make_tiny_model(tmp_path / "again")
    other = make_tiny_model(tmp_path / "other", seed=1)
    assert ref.uri == str(folder)
    assert again.digest == ref.digest != other.digest
    assert (tmp_path / "again/tokenizer.json").read_bytes() == (
        folder / "tokenizer.json"
    ).read_bytes()


def test_the_tiny_model_leaves_the_random_state_alone(tmp_path):
    import torch

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_tiny_model(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_the_tiny_models_shape(tiny):
    folder, _ = tiny
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["num_hidden_layers"]) == (64, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["max_position_embeddings"] == 512
    assert config["tie_word_embeddings"] is True
    assert 300 < config["vocab_size"] <= 400


def test_the_tiny_tokenizer_speaks_chatml(tiny):
    from transformers import AutoTokenizer

    folder, _ = tiny
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert max(ids) < len(tokenizer)
    hard = "Zwölf 火 \U0001f600\n\ttab  two spaces"
    assert tokenizer.decode(tokenizer(hard)["input_ids"]) == hard


def test_the_tiny_model_generates(tiny):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = tiny
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)("Which number")["input_ids"]])
    with torch.inference_mode():
        assert model(ids).logits.shape == (1, ids.shape[1], model.config.vocab_size)
    assert model.generation_config.eos_token_id == model.config.pad_token_id
