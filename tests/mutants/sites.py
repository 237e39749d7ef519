"""Every mutation that a source file allows: small changes of its syntax tree that change behaviour.

Not mutated, because no test of behaviour can or should notice: docstrings, annotations, decorators,
assertions, `__repr__`, `__slots__`, log calls and conditions of log calls alone, the text and the
parts of messages (f-strings), the numbers of named constants (a test takes such a number by its
name), and a bare return at the end.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Replace = Callable[[ast.AST], None]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: A call on these, or of a function so named, is for people to read.
_LOGS = frozenset({"log", "logger", "_log", "logging", "warnings"})
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_SKIPPED_FUNCTIONS = frozenset({"__repr__", "__str__"})


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file.

    ``path`` is from the root; ``function`` is the qualified name of the outermost function around
    it, or "" at the level of the module or of a class. ``line`` counts from 1, ``lines`` are those
    of the changed code and ``statement`` those of the statement around it, first and last.
    ``number`` is its place among all mutations of the file.
    """

    path: str
    function: str
    line: int
    lines: tuple[int, int]
    statement: tuple[int, int]
    operator: str
    before: str
    after: str
    number: int

    @property
    def change(self) -> str:
        """The change in one line; with the path and the line's text it names the mutation."""
        return f"{self.operator}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class _Found:
    """A change that can be made of the tree which it was found in."""

    node: ast.AST
    operator: str
    after: str
    make: Callable[[], None]
    function: str
    statement: ast.stmt | None


def mutations(path: str, source: str) -> list[Mutation]:
    """All of a file, in the order of its text."""
    return [_described(path, number, one) for number, one in enumerate(_find(ast.parse(source)))]


def mutated(source: str, number: int) -> ast.Module:
    """The tree with one mutation made; lines are those of the source."""
    tree = ast.parse(source)
    for at, one in enumerate(_find(tree)):
        if at == number:
            one.make()
            return ast.fix_missing_locations(tree)
    raise IndexError(f"the source has no mutation {number}")


def _described(path: str, number: int, one: _Found) -> Mutation:
    return Mutation(
        path=path,
        function=one.function,
        line=one.node.lineno,  # type: ignore[attr-defined]
        lines=_lines(one.node),
        statement=_lines(one.statement or one.node),
        operator=one.operator,
        before=_shown(one.node),
        after=one.after,
        number=number,
    )


def _lines(node: ast.AST) -> tuple[int, int]:
    first: int = node.lineno  # type: ignore[attr-defined]
    if isinstance(node, ast.If | ast.While | ast.For | ast.AsyncFor | ast.With | ast.AsyncWith):
        return first, first
    if isinstance(node, ast.ExceptHandler):
        return first, node.body[-1].end_lineno or first
    return first, getattr(node, "end_lineno", None) or first


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


@dataclass(frozen=True, slots=True)
class _Scope:
    function: str = ""
    classes: str = ""
    statement: ast.stmt | None = None
    #: Whether the function is over after it.
    last: bool = False


def _find(tree: ast.Module) -> Iterator[_Found]:
    yield from _block(tree.body, _Scope())


def _block(body: list[ast.stmt], scope: _Scope) -> Iterator[_Found]:
    for at, statement in enumerate(body):
        last = scope.last and at == len(body) - 1
        inner = _Scope(scope.function, scope.classes, statement, last)

        def put(new: ast.AST, at: int = at) -> None:
            assert isinstance(new, ast.stmt)
            body[at] = new

        yield from _statement(statement, put, inner)


def _statement(node: ast.stmt, put: Replace, scope: _Scope) -> Iterator[_Found]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _function(node, scope)
    elif isinstance(node, ast.ClassDef):
        yield from _class(node, scope)
    elif not _is_for_people(node):
        yield from _whole_statement(node, put, scope)
        if isinstance(node, ast.If | ast.While) and _is_plain(node.test):
            yield _negated(node, scope)
        yield from _children(node, scope)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> Iterator[_Found]:
    if node.name in _SKIPPED_FUNCTIONS or _is_stub(node):
        return
    # A default is evaluated where the function is defined, so it is not inside the function.
    yield from _children(node.args, _Scope(scope.function, scope.classes, node))
    name = scope.function or f"{scope.classes}{node.name}"
    yield from _block(node.body, _Scope(name, scope.classes, last=True))


def _class(node: ast.ClassDef, scope: _Scope) -> Iterator[_Found]:
    if not any("Protocol" in ast.unparse(base) for base in node.bases):
        classes = f"{scope.classes}{node.name}."
        yield from _block(node.body, _Scope(scope.function, classes))


def _negated(node: ast.If | ast.While, scope: _Scope) -> _Found:
    test = node.test
    new = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)

    def make() -> None:
        node.test = new

    return _Found(test, "negate", _shown(new), make, scope.function, scope.statement)


def _is_plain(test: ast.expr) -> bool:
    """A condition that no other operator turns round."""
    if isinstance(test, ast.Compare):
        return len(test.ops) > 1
    return not isinstance(test, ast.UnaryOp | ast.Constant)


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Only a docstring, or `...`: it is a type."""
    return all(
        isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in node.body
    )


def _is_for_people(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.Delete):  # of an argument: it marks the argument as unused
        return all(isinstance(one, ast.Name) for one in node.targets)
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Constant) or _is_log(value)
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Name) and one.id.startswith("__") for one in node.targets)
    if isinstance(node, ast.If):
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return True
        return all(map(_is_for_people, (*node.body, *node.orelse)))
    return False


def _is_log(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    name = (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")).lower()
    return name in _LOGS or (node.func.attr in _LOG_METHODS and "log" in name)


def _whole_statement(node: ast.stmt, put: Replace, scope: _Scope) -> Iterator[_Found]:
    """A statement removed, a way out turned."""

    def found(operator: str, new: ast.stmt) -> _Found:
        ast.copy_location(new, node)
        return _Found(
            node, operator, _shown(new), lambda: put(new), scope.function, scope.statement
        )

    at_function = bool(scope.function)
    if isinstance(node, ast.Raise):
        yield found("remove-raise", ast.Pass())
    elif isinstance(node, ast.Return) and node.value is not None:
        if not _is_falsy(node.value):
            yield found("return-none", ast.Return(ast.Constant(None)))
    elif isinstance(node, ast.Return):
        if not scope.last:
            yield found("remove-return", ast.Pass())
    elif isinstance(node, ast.Continue | ast.Break):
        yield found("remove-jump", ast.Pass())
        yield found("swap-jump", ast.Break() if isinstance(node, ast.Continue) else ast.Continue())
    elif at_function and isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield):
        yield found("remove-statement", ast.Pass())
    elif at_function and isinstance(node, ast.AugAssign | ast.Delete):
        yield found("remove-statement", ast.Pass())
        if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            other = _ARITHMETIC[type(node.op)]()
            yield found("arithmetic", ast.AugAssign(node.target, other, node.value))
    elif at_function and _sets_part(node):
        yield found("remove-statement", ast.Pass())


def _sets_part(node: ast.stmt) -> bool:
    """Whether it sets a part of an object, which tests may miss.

    Without a new name the code below would not run at all.
    """
    return isinstance(node, ast.Assign) and isinstance(
        node.targets[0], ast.Attribute | ast.Subscript
    )


def _is_falsy(node: ast.expr) -> bool:
    """A literal that is no more true than None; True is turned into False by another operator."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool) or not node.value
    if isinstance(node, ast.Tuple | ast.List):
        return not node.elts
    return isinstance(node, ast.Dict) and not node.keys


def _children(node: ast.AST, scope: _Scope) -> Iterator[_Found]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "type_params"):
            continue
        if isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                last = scope.last and _ends_with(node, name)
                yield from _block(value, _Scope(scope.function, scope.classes, last=last))
                continue
            for at, one in enumerate(value):
                if isinstance(one, ast.AST):

                    def put(new: ast.AST, value: list[ast.AST] = value, at: int = at) -> None:
                        value[at] = new

                    yield from _expression(one, put, scope)
        elif isinstance(value, ast.AST):

            def set_field(new: ast.AST, name: str = name) -> None:
                setattr(node, name, new)

            yield from _expression(value, set_field, scope)


def _expression(node: ast.AST, put: Replace, scope: _Scope) -> Iterator[_Found]:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.expr) and _is_log(node)):
        return
    if isinstance(node, ast.Subscript) and _is_type(node):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of zip: what is zipped has one length
    if isinstance(node, ast.ExceptHandler):
        yield from _handler(node, scope)
        yield from _block(node.body, _Scope(scope.function, scope.classes, last=scope.last))
        return
    if isinstance(node, ast.match_case):
        yield from _children(node, scope)
        return
    for operator, new in _variants(node, scope):
        if isinstance(new, ast.expr):
            ast.copy_location(new, node)

        def make(new: ast.AST = new) -> None:
            put(new)

        yield _Found(node, operator, _shown(new), make, scope.function, scope.statement)
    yield from _filters(node, scope)
    yield from _children(node, scope)


def _ends_with(node: ast.AST, block: str) -> bool:
    """Whether no part of the statement is left to do after this block of it."""
    if isinstance(node, ast.If | ast.With | ast.AsyncWith | ast.match_case):
        return True
    return isinstance(node, ast.Try) and (block != "body" or not node.orelse)


def _is_type(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"dict", "list", "set", "tuple"}


def _handler(node: ast.ExceptHandler, scope: _Scope) -> Iterator[_Found]:
    if isinstance(node.body[0], ast.Raise):
        return
    before = node.body

    def make() -> None:
        node.body = [ast.copy_location(ast.Raise(), before[0])]

    yield _Found(node, "raise-on", "raise", make, scope.function, scope.statement)


def _filters(node: ast.AST, scope: _Scope) -> Iterator[_Found]:
    """A condition of a comprehension, left out."""
    if isinstance(node, ast.comprehension):
        for at, one in enumerate(node.ifs):

            def make(at: int = at) -> None:
                del node.ifs[at]

            yield _Found(one, "drop-filter", "", make, scope.function, scope.statement)


def _variants(node: ast.AST, scope: _Scope) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS.get(type(op), ()):
                yield "compare", ast.Compare(node.left, [other()], node.comparators)
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in _COMPARISONS.get(type(op), ()):
                    ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                    yield "compare", ast.Compare(node.left, ops, node.comparators)
        case ast.BoolOp():
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and-or", ast.BoolOp(other_op, node.values)
            for at in range(len(node.values)):
                rest = [*node.values[:at], *node.values[at + 1 :]]
                yield "drop-operand", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.UnaryOp(op=ast.Not()):
            yield "drop-not", node.operand
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) if scope.function:
            yield "sign", node.operand
        case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_typing(node):
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.IfExp() if _is_plain(node.test):
            yield "negate", ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)) if scope.function:
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Constant(value=float(value)) if scope.function:
            yield "constant", ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            called = ast.copy_location(ast.Name(_CALLS[name], ast.Load()), node)
            yield "call", ast.Call(called, node.args, node.keywords)


def _is_typing(node: ast.BinOp) -> bool:
    """`int | None`, as in isinstance, or a path: a type checker notices these."""
    return _is_path(node) or _is_union(node)


def _is_path(node: ast.expr) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    parts = (node.left, node.right)
    return any(
        isinstance(one, ast.JoinedStr)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        or _is_path(one)
        for one in parts
    )


def _is_union(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.BitOr) and _names_type(node.left) and _names_type(node.right)


def _names_type(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_union(node)
    if isinstance(node, ast.Constant):
        return node.value is None
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(name) and (name[0].isupper() or name in {"int", "str", "float", "bytes", "bool"})
