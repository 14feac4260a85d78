"""The built wheel in a clean environment: no extras, nothing of the source tree."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, same

ROOT = Path(__file__).parents[2]
NO_NETWORK = """
import socket

def refuse(*_):
    raise AssertionError("the quick start went to the network")

socket.socket.connect = socket.socket.connect_ex = refuse
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_its_data_and_its_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"loom/__init__.py", "loom/py.typed", "loom/catalog/models.toml"} <= set(names)
    vectors = {
        f"loom/providers/embedding/data/{name}"
        for name in ("rows.npy", "scales.npy", "codes.npy", "spreads.npy", "vocabulary.txt", "NOTICE")
    }
    assert vectors <= set(names)
    for licence in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"licenses/{licence}") for name in names)
    assert all(name.startswith(("loom/", "loom_engine-")) for name in names)


def test_it_works_in_a_clean_environment_with_no_extras(wheel, tmp_path):
    uv = Path(sys.executable).parent / "uv"
    env = tmp_path / "env"
    python = env / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, env], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    listed = subprocess.run([uv, "pip", "list", "--python", python], check=True, capture_output=True, text=True).stdout
    assert not {"splintr-rs", "anthropic", "openai", "google-genai", "pytest", "wordllama"} & set(listed.split())
    assert len(listed.splitlines()) - 2 <= 18, listed  # two lines of heading
    (packages,) = env.glob("lib/*/site-packages")
    held = [path for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in held) < 90_000_000
    script = (
        "import loom, loom.compactor, pathlib, sys; assert pathlib.Path(loom.__file__).is_relative_to(sys.prefix);"
        "ctx = loom.Context('c'); ctx.foundation.add('You are helpful.'); ctx.convo.add(loom.Message.user('hi'));"
        "print(loom.plan(ctx.compile(), 'anthropic', 'claude-sonnet-4-5').markers[-1].reason)"
    )
    done = subprocess.run([python, "-I", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "end of the conversation"
    script = (
        "import loom\n"
        "with loom.open_memory_sync('sqlite:./m.db') as memory:\n"
        "    memory.remember('My sister Anna keeps a boat in Yokohama.', user_id='alice')\n"
        "    print(memory.recall('where is the boat?', user_id='alice').hits[0].item.text)"
    )
    done = subprocess.run([python, "-I", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "Yokohama" in done.stdout
    assert_readme_works(python, tmp_path)
    tried = subprocess.run(
        [python, "-I", ROOT / "scripts" / "try_install.py", ROOT / "README.md"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "Loom works" in tried.stdout
    demo = subprocess.run([env / "bin" / "loom", "demo"], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "One edit, and what it costs" in demo.stdout
    packages = [file for file in env.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in packages) < 92_000_000, "the base install stays small"


def assert_readme_works(python, folder):
    """The quick start prints what the page says: no key, no network, nothing but the base install."""
    start, *_ = (block for block in blocks((ROOT / "README.md").read_text("utf-8")) if block.language == "python")
    assert "Agent" in start.code
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and name != "LOOM_MODEL"}
    command = [python, "-I", "-c", NO_NETWORK + start.code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=env)
    assert start.expects
    assert same(done.stdout, start.expects.code)
