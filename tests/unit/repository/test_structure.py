"""The shape of the repository: imports, sizes, names, docstrings, and what may lie where.

Every rule is shown to be able to fail, by a small bad sample beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import repository_rules
from tests.support.repository_rules import CODE, PACKAGES, PURE, PURE_STDLIB, ROOT

ALLOWED = PURE_STDLIB | {"msgspec", "policies"}


def _holds(paths: list[Path], check: Callable[[Path], list[str]]) -> None:
    lines = [f"{path.relative_to(ROOT)}: {line}" for path in paths for line in check(path)]
    assert not lines, "\n" + "\n".join(lines)


def _lint_imports(folder: Path) -> tuple[int, str]:
    pytest.importorskip("importlinter")
    command = "from importlinter.cli import lint_imports_command as run; run(['--no-logo', '--no-cache'])"
    environment = {**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_import_contract_holds():
    code, text = _lint_imports(ROOT)
    assert code == 0, text


def test_import_contract_can_fail(tmp_path):
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text)
    folders = {path.parent.relative_to(ROOT) for path in repository_rules.sources(PACKAGES)}
    bad = {
        **{f"{folder}/__init__.py": "" for folder in folders},
        **{f"cortex/{name}.py": "" for name in ("package_guard", "planning")},
        "cortex/__init__.py": "def run():\n    from actors.api.client import run\n",
        "cortex/testing.py": "def f():\n    from actors.fakes.scripted_models import ScriptedModel\n",
        "actors/fakes/scripted_models.py": "",
        "cortex/state/state.py": "import actors.api.client\nimport rich\n",
        "cortex/scheduler/step.py": "def f():\n    import cortex.goals.lifecycle\n",
        "cortex/goals/lifecycle.py": "",
        "policies/failures/retry.py": "import policies.limits.pace\n",
        "policies/limits/pace.py": "",
        "policies/estimates/price.py": "import cortex.state.state\n",
        "actors/new/__init__.py": "",
        "actors/common/errors.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import actors.cli.app\n",
        "actors/cli/app.py": "",
        "actors/api/client.py": "import ray.util\n",
        "actors/branch/branch.py": "def f():\n    from anthropic import Anthropic\n",
        "actors/runtime/ray_runtime.py": "import ray\n",
        "actors/providers/messages/client.py": "import anthropic\n",
        "actors/providers/credentials/account.py": "import azure.identity\n",
        "actors/providers/credentials/entra_tokens.py": "import azure.identity\n",
        "actors/worker/worker.py": "import pydantic_monty\n",
        "actors/journal/journal.py": "import psycopg\n",
        "actors/journal/postgres/connection.py": "import psycopg\n",
    }
    for name, source in bad.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    code, message = _lint_imports(tmp_path)
    assert code != 0
    assert "Contracts: 0 kept, 10 broken." in message, message
    for arrow in (
        "cortex is not allowed to import actors",
        "policies is not allowed to import cortex",
        "cortex.state.state -> rich",
        "cortex.scheduler.step -> cortex.goals.lifecycle",
        "policies.failures.retry -> policies.limits.pace",
        "actors.common.errors -> actors.cli.app",
        "every child of every container must be declared as a layer",
        "- actors.new",
        "actors.api.client -> ray",
        "actors.branch.branch -> anthropic",
        "actors.journal.journal -> psycopg",
        "actors.providers.credentials.account -> azure",
    ):
        assert arrow in message, (arrow, message)
    assert "actors.runtime.ray_runtime -> ray" not in message
    assert "actors.providers.messages.client -> anthropic" not in message
    assert "actors.journal.postgres.connection -> psycopg" not in message
    assert "actors.providers.credentials.entra_tokens -> azure" not in message
    assert "cortex -> actors.api.client" not in message
    assert "cortex.testing -> actors.fakes.scripted_models" not in message


def test_core_and_policies_are_pure():
    def check(path: Path) -> list[str]:
        package = path.relative_to(ROOT).parts[0]
        front = ("actors.api.client", "actors.api.tables", "actors.api.vectors")
        doors = {"__init__.py": front, "testing.py": ("actors.fakes.scripted_models",)}
        allowed = doors.get(path.name, ()) if path.parent == ROOT / "cortex" else ()
        return repository_rules.purity(path.read_text(), ALLOWED | {package}, allowed)

    _holds(repository_rules.sources(PURE), check)


@pytest.mark.parametrize(
    "source",
    [
        *(f"import {name}" for name in ("os", "io", "time", "random", "asyncio", "logging", "socket", "pathlib")),
        *(f"import {name}" for name in ("secrets", "uuid", "tempfile", "subprocess", "threading", "ray", "os.path")),
        "from time import monotonic",
        "from . import state",
        "def f():\n    import actors.runtime.ray_runtime",
        "from actors.api.client import run",
        "open('file')",
        "print(1)",
        "{}[hash('a')]",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import date\ndate.today()",
    ],
)
def test_purity_can_fail(source):
    assert len(repository_rules.purity(source, ALLOWED, {"actors.api.client"})) == 1


def test_purity_lets_through_what_is_pure():
    source = "import msgspec, math\nfrom policies.estimates.price import cost\nfrom collections.abc import Mapping\n"
    assert repository_rules.purity(source, ALLOWED) == []
    assert (
        repository_rules.purity("def run():\n    from actors.api.client import run", ALLOWED, {"actors.api.client"})
        == []
    )


def test_files_and_functions_are_small():
    _holds(repository_rules.sources(CODE), lambda path: repository_rules.sizes(path.read_text()))


def test_sizes_can_fail():
    assert repository_rules.sizes("x = 1\n" * 600) == []
    assert len(repository_rules.sizes("x = 1\n" * 601)) == 1
    body = "    x = 1\n"
    assert repository_rules.sizes("def f():\n" + body * 69) == []
    assert len(repository_rules.sizes("def f():\n" + body * 70)) == 1
    assert len(repository_rules.sizes("class C:\n    async def f(self):\n" + ("    " + body) * 70)) == 1


SENT_TO_MODELS = {"cortex/control/commands.py"}
"""Files whose docstrings are tool descriptions in prompts: a change of theirs would ask known questions anew."""


def test_docstrings_begin_with_a_noun_or_a_verb():
    paths = [path for path in repository_rules.sources(PACKAGES) if str(path.relative_to(ROOT)) not in SENT_TO_MODELS]
    _holds(paths, lambda path: repository_rules.first_words(path.read_text()))


@pytest.mark.parametrize(
    "source",
    ['"""What a branch does."""', 'class A:\n    """Who asks."""', 'def _f():\n    """So many seconds."""'],
)
def test_first_words_can_fail(source):
    assert len(repository_rules.first_words(source)) == 1
    assert repository_rules.first_words('"""Whatever a branch returns, Oneness."""') == []


def test_folders_are_small():
    assert repository_rules.piles(str(path.relative_to(ROOT)) for path in repository_rules.sources(PACKAGES)) == []


def test_piles_can_fail():
    fifteen = [f"actors/a/m{number}.py" for number in range(15)]
    assert repository_rules.piles([*fifteen, "actors/a/__init__.py"]) == []
    assert repository_rules.piles([*fifteen, "actors/a/one.py"]) == ["actors/a: 16 modules, 15 at most"]
    top = [f"{package}/m{number}.py" for package in ("cortex", "policies") for number in range(13)]
    assert repository_rules.piles(top) == ["26 modules at the top, 25 at most"]


def test_nothing_imports_in_circles():
    paths = repository_rules.sources(PACKAGES)
    assert repository_rules.circles({str(path.relative_to(ROOT)): path.read_text() for path in paths}) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("import actors.b.y", "import actors.a.x"),
        ("from actors.b import y", "def f():\n    from actors.a.x import z"),
        ("from actors.b.y import q", "from actors.a import x"),
    ],
)
def test_circles_can_fail(one, other):
    sources = {"actors/__init__.py": "", "actors/a/__init__.py": "", "actors/b/__init__.py": ""}
    found = repository_rules.circles({**sources, "actors/a/x.py": one, "actors/b/y.py": other})
    assert found == ["circle of modules: actors.a.x, actors.b.y", "circle of folders: actors.a, actors.b"]
    assert repository_rules.circles({**sources, "actors/a/x.py": one, "actors/b/y.py": ""}) == []


def test_a_circle_of_folders_alone_is_seen():
    sources = {"actors/a/x.py": "import actors.b.y", "actors/a/z.py": "", "actors/b/y.py": "import actors.a.z"}
    assert repository_rules.circles(sources) == ["circle of folders: actors.a, actors.b"]


def test_no_module_hides_another():
    taken = repository_rules.taken_names()

    assert [line for name in CODE for line in repository_rules.hiding(name, taken)] == []


@pytest.mark.parametrize("name", ["select", "json", "ray", "anthropic", "genai_prices", "pytest", "opentelemetry"])
def test_hiding_can_fail(name):
    assert len(repository_rules.hiding(name, repository_rules.taken_names())) == 1
    assert repository_rules.hiding("selection", repository_rules.taken_names()) == []


def test_no_public_class_name_stands_twice_in_a_package():
    assert (
        repository_rules.twins(
            {str(path.relative_to(ROOT)): path.read_text() for path in repository_rules.sources(PACKAGES)}
        )
        == []
    )


def test_twins_can_fail():
    sources = {
        "actors/a.py": "class Node: ...",
        "actors/b.py": "class Node: ...\nclass _Own: ...",
        "cortex/a.py": "class Node: ...",
    }
    assert repository_rules.twins(sources) == ["class Node: actors/a.py, actors/b.py"]
    assert repository_rules.twins({**sources, "actors/b.py": "class Edge: ...\nclass _Own: ..."}) == []


def test_names_say_something():
    def check(path: Path) -> list[str]:
        return repository_rules.words(path.stem, path.read_text())

    _holds(repository_rules.sources((*PACKAGES, "benchmarks")), check)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("utils", ""),
        ("helpers", ""),
        ("branch", "class BranchManager: ..."),
        ("branch", "class C:\n    class LLMManager: ..."),
    ],
)
def test_words_can_fail(module, source):
    assert len(repository_rules.words(module, source)) == 1
    assert repository_rules.words("row_data", "class ProcessPool: ...\nclass Managed: ...") == []


def test_public_things_are_documented():
    paths = repository_rules.sources(PACKAGES)
    inherited = {name for path in paths for name in repository_rules.documented_methods(path.read_text())}
    _holds(paths, lambda path: repository_rules.docstrings(path.read_text(), inherited))


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "'''A module.'''\ndef f(): ...",
        "'''A module.'''\nasync def f(): ...",
        "'''A module.'''\nclass C: ...",
        "'''A module.'''\nclass C:\n    '''A class.'''\n    def f(self): ...",
    ],
)
def test_docstrings_can_fail(source):
    assert len(repository_rules.docstrings(source)) == 1


def test_docstrings_of_private_and_overriding_things_may_be_missing():
    source = "'''M.'''\ndef _f(): ...\nclass C:\n    '''C.'''\n    def f(self): ...\n    def _g(self): ..."
    assert repository_rules.docstrings(source, {"f"}) == []
    source = "'''M.'''\nclass P(Protocol):\n    '''P.'''\n    @property\n    def f(self) -> int: ..."
    assert repository_rules.docstrings(source) == []
    assert repository_rules.documented_methods(
        "class P:\n    def f(self):\n        '''Meaning.'''\n    def g(self): ..."
    ) == {"f"}


def test_nothing_of_this_machine_is_tracked():
    names = repository_rules.machine_names()
    samples = {Path(__file__), Path(repository_rules.__file__)}
    paths = [path for path in repository_rules.files() if path not in samples]
    _holds(paths, lambda path: repository_rules.machine(path.read_text(errors="replace"), names))


@pytest.mark.parametrize(
    "line",
    [
        "see /home/ann/notes",
        "open('/root/.config')",
        "cd /tmp/scratch",
        "pip install --index-url x",
        "PIP = file:///mirror/simple",
        "the host registry.internal",
    ],
)
def test_machine_can_fail(line):
    assert len(repository_rules.machine(line, {"registry.internal"})) == 1


def test_machine_lets_through_what_every_machine_has():
    text = "/tmp/ray holds sessions\nhttps://api.anthropic.com/v1\n$HOME/state\n/var/lib/cortex\n"
    assert repository_rules.machine(text, {"registry.internal"}) == []
    assert str(ROOT) + "/" in repository_rules.machine_names()
    assert repository_rules.machine("state/work/x and ./work/", {"/work/"}) == []


def test_top_level_holds_only_what_belongs_there():
    assert repository_rules.top_level(path.relative_to(ROOT).parts[0] for path in repository_rules.files()) == []


def test_top_level_can_fail():
    assert repository_rules.top_level(["cortex", "notes.txt", "README.md"]) == [
        "notes.txt does not belong at the top level"
    ]


def test_files_are_found_without_git(tmp_path):
    for name in (
        ".venv/lib/x.py",
        "cortex/a.py",
        "cortex/__pycache__/a.pyc",
        ".ci/run",
        ".gitignore",
        "notes.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = [str(path.relative_to(tmp_path)) for path in repository_rules.files(tmp_path)]
    assert found == [".ci/run", ".gitignore", "cortex/a.py", "notes.txt"]
