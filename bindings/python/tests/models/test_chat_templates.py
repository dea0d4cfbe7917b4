"""Chat templates of real models, compared with Transformers' own rendering."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

import layerzero as lz

DATA = Path(__file__).parents[4] / "target/oracles/tokenizers-4"
MODELS = ["llama3", "qwen3", "deepseek_v3", "mistral_nemo", "gemma3"]

TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Gets the <weather> & 'more' \"ü\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city"},
                    "days": {"type": "integer", "default": 3},
                    "scale": {"type": "number", "default": 1e-7},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "flag": True, "none": None}},
        }
    ],
}
ANSWER = {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"t": 3}'}
USER = {"role": "user", "content": "  Hi ü 'x' \n"}
CONVERSATIONS = {
    "one message": ([USER], {"add_generation_prompt": True}),
    "system": (
        [{"role": "system", "content": " Be brief.\n"}, USER, {"role": "assistant", "content": "Hello <b>"}, USER],
        {"add_generation_prompt": True},
    ),
    "without prompt": ([USER, {"role": "assistant", "content": "<think>\nmm\n</think>\n\nHello"}], {}),
    "tools": ([USER], {"tools": TOOLS, "add_generation_prompt": True}),
    "tool call": ([USER, CALL, ANSWER, {"role": "assistant", "content": "Cold."}], {"tools": TOOLS}),
    "wrong order": ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], {}),
    "continued": ([USER, {"role": "assistant", "content": "Sure,  \n"}], {"continue_final_message": True}),
    "continued without spaces": ([USER, {"role": "assistant", "content": "Sure"}], {"continue_final_message": True}),
    "continued reasoning": (
        [USER, {"role": "assistant", "content": "", "reasoning": "Let me see"}],
        {"continue_final_message": "reasoning_content"},
    ),
    "continued user": ([USER], {"continue_final_message": True}),
    "continued with a prompt": ([USER], {"continue_final_message": True, "add_generation_prompt": True}),
    "reasoning": ([USER, {"role": "assistant", "content": "Hello", "reasoning": "mm"}, USER], {"add_generation_prompt": True}),
    "variable": ([USER], {"add_generation_prompt": True, "enable_thinking": False}),
}


def configuration(name):
    return json.loads((DATA / f"{name}_config/tokenizer_config.json").read_text(encoding="utf-8"))


@pytest.fixture
def small(tokenizer_path):
    return PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path))


@pytest.mark.parametrize("name", MODELS)
def test_conversations_are_rendered_as_by_transformers(name, small, tokenizer_path, tmp_path):
    shutil.copy(DATA / f"{name}_config/tokenizer_config.json", tmp_path)
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    ours = lz.Tokenizer.from_file(tmp_path / "tokenizer.json")
    config = configuration(name)
    tokens = {name: token if isinstance(token, str) else token["content"] for name in TOKENS if (token := config.get(name))}
    refused = 0
    for messages, options in CONVERSATIONS.values():
        try:
            expected = small.apply_chat_template(messages, chat_template=config["chat_template"], tokenize=False, **tokens, **options)
        except TemplateError as error:
            refused += 1
            with pytest.raises(ValueError, match="refuses the conversation") as raised:
                ours.apply_chat_template(messages, tokenize=False, **options)
            assert str(error) in str(raised.value)
            continue
        except ValueError as error:
            assert "continue_final_message" in str(error)
            with pytest.raises(ValueError, match="`continue_final_message`"):
                ours.apply_chat_template(messages, tokenize=False, **options)
            continue
        assert ours.apply_chat_template(messages, tokenize=False, **options) == expected, name
    assert refused == {"mistral_nemo": 1, "gemma3": 2}.get(name, 0)


def test_ids_are_those_of_transformers():
    config = configuration("qwen3")
    fast = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "qwen3.json"), eos_token="<|im_end|>", chat_template=config["chat_template"])
    messages, options = CONVERSATIONS["tool call"]
    expected = fast.apply_chat_template(messages, return_dict=False, **options)
    # The object's own template and special tokens are used.
    ours = lz.register_tokenizer("chat-qwen3", fast)
    assert ours.apply_chat_template(messages, **options) == expected
    assert pickle.loads(pickle.dumps(ours)).apply_chat_template(messages, **options) == expected
    assert ours.splitting_special_tokens().apply_chat_template(messages, tokenize=False) == ours.apply_chat_template(messages, tokenize=False)


def test_functions_are_tools(small, tokenizer_path):
    def get_weather(city: str, days: int = 3) -> str:
        """
        Gets the weather.

        Args:
            city: The city.
            days: The number of days.
        """
        return city * days

    template = "{{ tools | tojson(indent=2) }}{{ strftime_now('%d %b %Y') }}"
    expected = small.apply_chat_template([USER], chat_template=template, tools=[get_weather], tokenize=False)
    ours = lz.Tokenizer.from_file(tokenizer_path).with_chat_template(template)
    assert ours.apply_chat_template([USER], tools=[get_weather], tokenize=False) == expected
