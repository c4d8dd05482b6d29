"""What an import brings along, and the public names."""

import subprocess
import sys

import pytest

import infhess
from infhess import _api

FRESH = [sys.executable, "-c"]


def modules_after(code):
    """Modules that a fresh interpreter has loaded after running some code."""
    script = f"import sys\n{code}\nprint(chr(10).join(sys.modules))"
    found = subprocess.run([*FRESH, script], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_help_needs_no_torch():
    code = (
        "from infhess.cli.app import app\ntry:\n    app(['--help'], prog_name='infhess')\nexcept SystemExit:\n    pass"
    )
    assert not modules_after(code) & {"torch", "numpy", "scipy", "sklearn", "matplotlib"}


def test_the_library_imports_torch_and_no_compiler():
    loaded = modules_after("import infhess\ninfhess.RateFree, infhess.spectrum")
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "torch._inductor", "sympy", "scipy", "sklearn", "matplotlib", "typer"}


@pytest.mark.parametrize("name", [n for n in _api.__all__ if n != "__version__"])
def test_every_public_name_is_there_and_documented(name):
    found = getattr(infhess, name)
    assert found is getattr(_api, name)
    assert name in dir(infhess)
    assert name == "Prior" or found.__doc__


FRAMEWORKS = {"lightning", "transformers", "accelerate", "skorch", "tensorboard"}


def test_frameworks_are_imported_when_they_are_asked_for_and_not_before():
    code = "import infhess\ninfhess.RateFree, infhess.integrations, dir(infhess)"
    assert not modules_after(code) & FRAMEWORKS
    loaded = modules_after(code + "\ninfhess.integrations.skorch.CurvatureCallback()")
    assert "skorch" in loaded
    assert not loaded & {"lightning", "transformers"}


def test_a_framework_that_is_missing_is_named():
    code = "import sys\nsys.modules['skorch'] = None\nimport infhess\n"
    catch = (
        "try:\n    infhess.integrations.skorch\nexcept ModuleNotFoundError as e:\n    print(str(e).replace(' ', '_'))"
    )
    found = modules_after(code + catch)
    assert any("needs_skorch;_pip_install_'infhess[integrations]'" in line for line in found)
    with pytest.raises(AttributeError, match="it has accelerate, lightning, skorch, transformers"):
        infhess.integrations.nonsense  # noqa: B018


def test_submodules_do_not_hide_names():
    code = "from infhess.spectra import ritz\nfrom infhess.optim import rate_free\nimport infhess\n"
    modules_after(code + "assert callable(infhess.spectrum) and callable(infhess.preconditioner)")


def test_errors_are_value_errors_and_unknown_names_are_attribute_errors():
    for name in _api.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(infhess, name), ValueError)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        infhess.nonsense  # noqa: B018
    exec("from infhess import *", scope := {})
    assert set(_api.__all__) <= set(scope)
