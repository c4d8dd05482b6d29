"""Imports go downward only, and the core imports torch and safetensors alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import infhess

ROOT = Path(infhess.__file__).parent
LAYERS = [
    {"_checks", "_files", "_precision", "_random", "_version"},
    {"lowrank"},
    {"posterior"},
    {"curvature"},
    {"pilot"},
    {"active"},
    {"scaling"},
    {"spectra"},
    {"optim"},
    {"problems", "data"},
    {"harness"},
    {"experiments", "bench"},
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


CORE_FILES = [p for p in FILES if LEVEL[layer(p)] <= CORE]


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_imports_torch_and_safetensors_alone(path):
    for module, top in imports(path):
        name = module.split(".")[0]
        lazy = {"numpy", "scipy"} if not top else set()
        assert name in {"infhess", "torch", "safetensors", "__future__"} | lazy or name in sys.stdlib_module_names, (
            f"{path.name}: {module}"
        )


def test_the_table_of_layers_is_the_package():
    present = {layer(p) for p in FILES}
    assert present <= set(LEVEL), present - set(LEVEL)
