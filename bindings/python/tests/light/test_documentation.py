"""The examples of the documentation run: Python, policies and commands of pages, the tutorial, how-to pages and notebooks."""

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[4] / "docs"
BLOCKS = [
    pytest.param(language, text, id=f"{page}-{language}-{number}")
    for page in ("operating", "policy")
    for number, (language, text) in enumerate(
        re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.S | re.M)
    )
]


def run(command, folder, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
    done = subprocess.run(command, cwd=folder, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_an_example_runs(language, text, tmp_path):
    if language == "python":
        run([sys.executable, "-W", "error", "-c", "import numpy\nimport layerzero as lz\n" + text], tmp_path)
    elif language == "yaml":
        (tmp_path / "layerzero.yaml").write_text(text, encoding="utf-8")
        run([sys.executable, "-c", "import layerzero as lz; lz.list_operations()"], tmp_path)
    elif language == "sh":
        for line in text.splitlines():
            words = shlex.split(line)
            variables = dict(word.split("=", 1) for word in words if word.startswith("LAYERZERO_"))
            program, *rest = words[len(variables) :]
            assert program == "lz", line
            assert run([sys.executable, "-m", "layerzero", *rest], tmp_path, **variables).stdout
    else:
        pytest.fail(f"no test runs a block of {language!r}")


def test_the_page_has_examples_of_each_kind():
    assert {block.values[0] for block in BLOCKS} == {"python", "yaml", "sh"}


#: Pages whose examples depend on each other: they run in order, in one folder.
GUIDES = ["tutorial", *sorted(f"how-to/{page.stem}" for page in (DOCS / "how-to").glob("*.md"))]


@pytest.mark.parametrize("page", GUIDES)
def test_the_examples_of_a_guide_run_in_order(page, tmp_path):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.S | re.M)
    assert blocks, page
    environment = {"HOME": str(tmp_path)}
    for _, language, block in blocks:
        code = textwrap.dedent(block)
        if language == "python":
            run([sys.executable, "-W", "error", "-c", "import numpy\nimport layerzero as lz\n" + code], tmp_path, **environment)
        elif language == "sh":
            for line in code.splitlines():
                program, *rest = shlex.split(line)
                assert program == "lz", line
                run([sys.executable, "-m", "layerzero", *rest], tmp_path, **environment)
        elif language == "yaml":
            folder = tmp_path / "policy"
            folder.mkdir()
            (folder / "layerzero.yaml").write_text(code, encoding="utf-8")
            run([sys.executable, "-c", "import layerzero as lz; lz.list_operations()"], folder)
        elif language == "text":
            (tmp_path / "calls.txt").write_text(code, encoding="utf-8")
        else:
            assert language == "console", f"no test runs a block of {language!r}"


@pytest.mark.parametrize("notebook", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_twice_in_one_kernel(notebook, tmp_path):
    """In a real kernel, which is an interactive session, all cells can run again."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    content.cells = [copy.deepcopy(cell) for _ in range(2) for cell in content.cells]
    client = nbclient.NotebookClient(content, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env={**os.environ, "HOME": str(tmp_path)})
    assert any(cell.get("outputs") for cell in content.cells)


def test_notebooks_are_checked_in_without_outputs():
    notebooks = sorted((DOCS / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 2
    for notebook in notebooks:
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs") and not cell.get("execution_count"), notebook.name
