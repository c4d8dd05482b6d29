"""Imports go downward only and in no circle, the core imports torch and safetensors alone, and names occur once.

The benchmarks are a package of their own above the library, which does not know them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import infhess

ROOT = Path(infhess.__file__).parent
BENCHMARKS = Path(__file__).parent.parent / "benchmarks" / "infhess_bench"
LAYERS = [
    {"_checks", "_distributed", "_files", "_precision", "_random", "_draw", "_rules", "_version"},
    {"lowrank"},
    {"posterior"},
    {"curvature"},
    {"pilot"},
    {"active"},
    {"preconditioners"},
    {"spectra"},
    {"optim"},
    {"minimizing"},
    {"integrations"},
    {"example"},
    {"cli", "__main__"},
]
LEVEL = {name: i for i, layer in enumerate(LAYERS) for name in layer}
CORE = LEVEL["optim"]
FILES = [p for p in sorted(ROOT.rglob("*.py")) if p not in (ROOT / "__init__.py", ROOT / "_api.py")]


def imports(path):
    """(module, is at the top level of the file) of every import."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield node.module, id(node) in top
            for alias in node.names:
                if node.module == "infhess":
                    yield f"infhess.{alias.name}", id(node) in top
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top


def layer(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downward(path):
    own = LEVEL[layer(path)]
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "infhess" and len(parts) > 1:
            assert LEVEL[parts[1]] <= own, f"{path.name} imports {module}, which lies above it"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_does_not_know_its_benchmarks(path):
    assert not [module for module, _ in imports(path) if module.split(".")[0] == "infhess_bench"]


CORE_FILES = [p for p in FILES if LEVEL[layer(p)] <= CORE]


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_imports_torch_and_safetensors_alone(path):
    for module, top in imports(path):
        name = module.split(".")[0]
        lazy = {"numpy", "scipy", "matplotlib", "pandas", "curvlinops", "linear_operator"} if not top else set()
        assert name in {"infhess", "torch", "safetensors", "__future__"} | lazy or name in sys.stdlib_module_names, (
            f"{path.name}: {module}"
        )


@pytest.mark.parametrize("name", ["accelerate", "lightning", "skorch", "transformers"])
def test_an_integration_imports_its_framework_alone(name):
    theirs = {module.split(".")[0] for module, _ in imports(ROOT / "integrations" / f"{name}.py")}
    comes_with = {"lightning": {"torchmetrics"}}.get(name, set())
    foreign = {module for module in theirs if module not in sys.stdlib_module_names} - {
        "infhess",
        "torch",
        "__future__",
    }
    assert foreign <= {name} | comes_with


def test_the_table_of_layers_is_the_package():
    present = {layer(p) for p in FILES}
    assert present <= set(LEVEL), present - set(LEVEL)


def modules(root):
    """Dotted names of all modules of a package, and their files."""
    paths = {p: p.relative_to(root.parent).with_suffix("") for p in sorted(root.rglob("*.py"))}
    return {".".join(name.parts).removesuffix(".__init__"): path for path, name in paths.items()}


def imported(path, known):
    """Modules of the package that a file imports, anywhere in it: at the top, in functions, and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("root", [ROOT, BENCHMARKS], ids=lambda root: root.name)
def test_no_imports_go_in_a_circle(root):
    known = modules(root)
    # A package imports its modules to hand their names on; who imports the package by name waits for these as well.
    graph = {name: {m for m in imported(path, known) if m in known} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_a_circle_is_seen_wherever_the_imports_stand(tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("def f():\n    from infhess import second\n")
    second.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from infhess.first import f\n")
    known = {"infhess.first": first, "infhess.second": second}
    graph = {name: set(imported(path, known)) for name, path in known.items()}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("root", [ROOT, BENCHMARKS], ids=lambda root: root.name)
def test_a_file_name_occurs_once(root):
    names = Counter(p.name for p in root.rglob("*.py") if p.name != "__init__.py")
    assert not {name for name, count in names.items() if count > 1}
