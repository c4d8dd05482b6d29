"""What is left out of the suite where a framework does not install: Transformers asks for Python 3.11."""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("transformers")
    else ["tests/integrations/test_transformers.py", "src/infhess/integrations/transformers.py"]
)
