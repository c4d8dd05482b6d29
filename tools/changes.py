"""Changes of a source file, one at a time, as a mistake might make them; messages and annotations are left alone."""

import ast
import copy
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
MOST_A_PLACE = 2
# Messages, and what only types need.
LEFT_ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Change(NamedTuple):
    """The index-th change of a file: its line, the function or constant, and what becomes of what."""

    path: str
    index: int
    line: int
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.place}: {self.what}"


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                if type(op) in SWAPS:
                    yield _with(node, ops=[*ops[:i], SWAPS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(left=ast.Constant(value=str())) | ast.BinOp(right=ast.Constant(value=str())):
            return
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield _with(node, op=SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield _with(node, func=ast.Name(NAMES[name]))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in NAMES:
            yield _with(node, func=ast.Attribute(value, NAMES[name]))
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value) if value == 0 or value > 1e-30:
            yield ast.Constant(type(value)(1 - value if value in (0, 1) else 2 * value))
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.UnaryOp):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.Compare() | ast.BoolOp() as value):
            yield _with(node, value=ast.UnaryOp(ast.Not(), value))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    vars(new).update(fields)
    return new


def changes(node: ast.AST, place: str = "") -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(place, node, what may stand for it) below a node; a setting and a constant of a module are places of their own."""
    match node:
        case ast.FunctionDef(name=name, args=args, body=body):
            place, below = f"{place}.{name}", [*args.defaults, *filter(None, args.kw_defaults), *body]
        case ast.ClassDef(name=name, body=body):
            place, below = f"{place}.{name}", body
        case ast.AnnAssign(target=target, value=value):
            place, below = f"{place}.{ast.unparse(target)}", [value] if value else []
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
            place, below = f"{place}.{name}", [value]
        case ast.Subscript(value=value, slice=ast.Constant()):
            below = [value]
        case _:
            below = [] if isinstance(node, LEFT_ALONE) else ast.iter_child_nodes(node)
    yield from ((place[1:], node, new) for new in replacements(node))
    for child in below:
        yield from changes(child, place)


def listed(path: str, root: Path) -> list[Change]:
    """All changes of a source file."""

    def line(node: ast.AST) -> str:
        return ast.unparse(getattr(node, "test", node)).splitlines()[0]

    found = enumerate(changes(ast.parse((root / path).read_text(encoding="utf-8"))))
    return [Change(path, i, old.lineno, place, f"{line(old)}  →  {line(new)}") for i, (place, old, new) in found]


def mutated(change: Change, root: Path) -> str:
    """The source of a file with one change in it."""
    tree = ast.parse((root / change.path).read_text(encoding="utf-8"))
    _, old, new = list(changes(tree))[change.index]
    return ast.unparse(ast.fix_missing_locations(_Replaced(old, new).visit(tree)))


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def spread(found: list[Change], number: int, seed: int) -> list[Change]:
    """So many, in turn from every file and in it from every place, a place at most twice."""
    files: dict[str, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
    for change in random.Random(seed).sample(found, len(found)):
        files[change.path][change.place].append(change)
    rounds = [_in_turn([some[:MOST_A_PLACE] for some in places.values()]) for places in files.values()]
    return _in_turn(rounds)[:number]


def _in_turn(lists: list[list[Change]]) -> list[Change]:
    return [change for change in chain(*zip_longest(*lists)) if change is not None]
