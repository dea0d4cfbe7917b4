"""The example in every operation's docstring is a valid call."""

import functools
import textwrap
import types

import pytest

import layerzero as lz

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("operation", lz.list_operations())
def test_docstring_example_is_a_valid_call(operation):
    function = getattr(lz.ops, operation.replace(".", "_"))
    doc = function.__doc__
    assert "\nArgs:\n" in doc and "\nExample:\n" in doc
    example = textwrap.dedent(doc.split("\nExample:\n")[1])
    *made, call = example.splitlines()
    assert call.split(" = ")[-1].startswith(f"lz.ops.{function.__name__}(")
    if "lz.Tokenizer" in example:
        compile(example, operation, "exec")
        return
    asked = types.SimpleNamespace(
        ops=types.SimpleNamespace(**{function.__name__: functools.partial(lz.validate, operation)})
    )
    known = {"torch": torch, "lz": asked}
    exec("\n".join(made), known)
    assert eval(call.split(" = ")[-1], known) == []
