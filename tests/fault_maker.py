"""Small faults in Python source: where one can be made, and the source that has it.

A fault replaces some bytes; all else in the file stays as it is.
"""

import ast
import io
import itertools
import random
import re
import tokenize
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TURNED = "condition turned"
LEFT_OUT = "call left out"
MOVED = "limit moved by one"
EXCHANGED = "and/or exchanged"
SWALLOWED = "except that swallows"
RETURNED = "default returned early"

_MOVED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_WORDS = {"and": b"or", "or": b"and"}
_EMPTY = dict.fromkeys(("Sequence", "tuple", "Iterable", "Collection"), "()") | {
    "None": "",
    "bool": "False",
    "int": "0",
    "float": "0.0",
    "str": '""',
    "bytes": 'b""',
    "list": "[]",
    "dict": "{}",
    "Mapping": "{}",
    "set": "set()",
    "frozenset": "frozenset()",
}
"""What a function returns that does nothing, by the name of its type."""

_GENERATORS = {"Iterator", "AsyncIterator", "Generator", "AsyncGenerator"}


@dataclass(frozen=True)
class Fault:
    """What is changed in one file."""

    kind: str
    path: str
    line: int
    lines: tuple[int, int]
    """The first and the last line of its statement: a test that runs one of them may notice."""
    in_function: bool
    """False for what runs when the module is imported."""
    start: int
    end: int
    new: bytes
    was: str
    """The first line that is changed."""
    becomes: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}\n    - {self.was}\n    + {self.becomes}"

    def made_in(self, source: bytes) -> bytes:
        return source[: self.start] + self.new + source[self.end :]


def faults_in(path: str, source: bytes) -> list[Fault]:
    """Return all faults that can be made in a file, in the order of the file."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda fault: (fault.start, fault.end))


def changes_something(fault: Fault, source: bytes) -> bool:
    """Whether the file is still Python, and another program."""
    try:
        changed = ast.parse(fault.made_in(source))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


def choose(faults: Sequence[Fault], count: int, luck: random.Random) -> Iterator[Fault]:
    """Yield some of the faults, of each kind about as many."""
    left: dict[str, list[Fault]] = {}
    for fault in faults:
        left.setdefault(fault.kind, []).append(fault)
    for _ in range(min(count, len(faults))):
        kind = luck.choice(sorted(left))
        yield left[kind].pop(luck.randrange(len(left[kind])))
        if not left[kind]:
            del left[kind]


class _Finder(ast.NodeVisitor):
    """Collects the faults of a file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Fault] = []
        self._path = path
        self._source = source
        lines = source.split(b"\n")
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._tokens = [
            (self._starts[row - 1] + len(lines[row - 1].decode()[:column].encode()), token.string)
            for token in tokenize.tokenize(io.BytesIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
            for row, column in [token.start]
        ]
        self._statement = (1, 1)
        self._in_function = False

    def _at(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _after(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _add(self, kind: str, start: int, end: int, new: bytes) -> None:
        line = bisect_right(self._starts, start)
        first, after = self._starts[line - 1], self._starts[line]
        was = self._source[first:after].strip().decode()
        becomes = self._source[first:start] + new + self._source[end : max(end, after)]
        text = becomes.strip().decode().partition("\n")[0]
        lines, inside = self._statement, self._in_function
        self.found.append(Fault(kind, self._path, line, lines, inside, start, end, new, was, text))

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        before = self._statement
        self._statement = _lines_of(node)
        super().visit(node)
        self._statement = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in (*node.decorator_list, node.args):
            self.visit(each)
        before, self._in_function = self._in_function, True
        self._return_early(node)
        for statement in node.body:
            self.visit(statement)
        self._in_function = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _return_early(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        default = _default_of(node)
        if default is None or not body or isinstance(body[0], ast.Pass):
            return
        if isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            return  # `...`
        start = self._at(body[0])
        line_start = self._starts[body[0].lineno - 1]
        indent = self._source[line_start:start]
        if indent.strip():
            return
        self._statement = _lines_of(body[0])
        self._add(RETURNED, start, start, f"return {default}".rstrip().encode() + b"\n" + indent)

    def _turn(self, test: ast.expr) -> None:
        if isinstance(test, ast.Constant) or "TYPE_CHECKING" in ast.unparse(test):
            return
        start, end = self._at(test), self._after(test)
        self._add(TURNED, start, end, b"not (" + self._source[start:end] + b")")

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._turn(node.test)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_If  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._turn(test)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            self._add(LEFT_OUT, self._at(node), self._after(node), b"pass")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave f-strings as they are: before Python 3.12 nothing says where their parts stand."""

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator in zip(operands, node.ops, strict=False):
            new = _MOVED.get(type(operator))
            if new is not None:
                start, word = self._operator(left, {"<", "<=", ">", ">="})
                self._add(MOVED, start, start + len(word), new.encode())
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub):
            self._move(node.left, node.right)
        self.generic_visit(node)

    def visit_Slice(self, node: ast.Slice) -> None:
        self._move(node.lower, node.upper)
        self.generic_visit(node)

    def _move(self, *literals: ast.expr | None) -> None:
        for each in literals:
            if isinstance(each, ast.Constant) and type(each.value) is int:
                new = str(each.value + 1).encode()
                self._add(MOVED, self._at(each), self._after(each), new)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = [self._operator(left, {"and", "or"}) for left in node.values[:-1]]
        first, at, new = words[0][0], words[0][0], b""
        for start, word in words:
            new += self._source[at:start] + _WORDS[word]
            at = start + len(word)
        self._add(EXCHANGED, first, at, new)
        self.generic_visit(node)

    def _operator(self, left: ast.expr, words: set[str]) -> tuple[int, str]:
        """Return where the operator behind an operand is, and how it is spelled."""
        first = bisect_left(self._tokens, (self._after(left), ""))
        later = itertools.islice(self._tokens, first, None)
        return next(each for each in later if each[1] in words)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if not all(isinstance(each, ast.Pass) for each in node.body):
            before, self._statement = self._statement, _lines_of(node.body[0])
            self._add(SWALLOWED, self._at(node.body[0]), self._after(node.body[-1]), b"pass")
            self._statement = before
        self.generic_visit(node)


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    """Return the first and the last line of a statement, without the statements in it."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if isinstance(statement, ast.Match):
        return statement.lineno, statement.cases[0].pattern.lineno - 1
    if not body:
        return statement.lineno, statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, body[0].lineno - 1)


def _default_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """Return what a function may return that does nothing; None where that is not known."""
    if node.returns is None or any("overload" in ast.unparse(each) for each in node.decorator_list):
        return None
    names = [word.strip() for word in re.sub(r"\[.*\]", "", ast.unparse(node.returns)).split("|")]
    names = [name.strip("'\"").rpartition(".")[2] for name in names]
    if "None" in names or names[0] in _GENERATORS:
        return ""
    return _EMPTY.get(names[0])
