"""Source rules for kernel files: whatever the front ends of NKI require of the file itself. Names
and arguments of nki are checked by the interpreter when they are used.

Loops with a register counter (dynamic_range, fori_loop) are outside the subset: each iteration ends
by draining the DMA queues and a barrier, which unrolled code does not need.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import NamedTuple

from dfmp2.trainium.interpreter.rules import NotInSubset, Violation

BUILTINS = ("range", "len", "min", "max", "print")
MODULES = ("nki", "nki.language", "nki.isa")
FOREIGN = ("numpy", "neuronxcc", "torch", "jax")
ATTRIBUTES = frozenset(("shape", "dtype", "buffer", "ap", "append", "reshape"))
# Statement or expression -> what to write instead.
REFUSED: dict[type[ast.AST], str] = {
    ast.Lambda: "lambda",
    ast.ClassDef: "class definition",
    ast.AsyncFunctionDef: "async function",
    ast.Try: "try statement",
    ast.TryStar: "try statement",
    ast.ListComp: "list comprehension",
    ast.SetComp: "set comprehension",
    ast.DictComp: "dict comprehension",
    ast.GeneratorExp: "generator expression",
    ast.Yield: "generator",
    ast.YieldFrom: "generator",
    ast.Await: "await",
    ast.Starred: "starred expression",
    ast.NamedExpr: "assignment expression :=",
    ast.Match: "match statement",
    ast.Delete: "del statement",
    ast.Set: "set display",
    ast.Raise: "raise statement (use assert)",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}


class Source(NamedTuple):
    """A checked kernel file.

    Attributes
    ----------
    tree : syntax tree without the functions that break a rule
    constants : names of its constants
    broken : functions that break a rule, with the violation; the others can be used
    """

    tree: ast.Module
    constants: tuple[str, ...]
    broken: dict[str, Violation]


def read_source(text: str, name: str) -> Source:
    """Check kernel source.

    Parameters
    ----------
    text : the source; name : short file name for messages

    Raises
    ------
    Violation : with the rule and "name:line"
    """
    try:
        tree = ast.parse(text)
    except (
        SyntaxError,
        ValueError,
    ) as error:  # ValueError: null characters, in some versions of Python
        line = getattr(error, "lineno", None)
        raise Violation(
            "syntax", f"not Python: {error}", f"{name}:{line}" if line else name
        ) from error
    broken = Lint(tree, name).check()
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef) or node.name not in broken
    ]
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    names = (
        target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)
    )
    return Source(tree, tuple(names), broken)


class Lint:
    """One pass over one file."""

    def __init__(self, tree: ast.Module, name: str) -> None:
        self._tree = tree
        self._name = name
        self._modules: dict[str, str] = {}
        self._globals: set[str] = set()
        nodes = list(ast.walk(tree))
        self._bound = {
            n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        }
        self._bound |= {*BUILTINS, *(node.arg for node in nodes if isinstance(node, ast.arg))}

    def check(self) -> dict[str, Violation]:
        """Functions that break a rule; raises if the file itself breaks one."""
        for node in self._tree.body:
            self._top_level(node)
        broken = {}
        for node in self._tree.body:
            if isinstance(node, ast.FunctionDef):
                try:
                    self._function(node)
                except Violation as violation:
                    broken[node.name] = violation
        return broken

    def _refuse(self, rule: str, node: ast.AST, done: str) -> Violation:
        return Violation(rule, done, f"{self._name}:{getattr(node, 'lineno', 0)}")

    def _outside(self, node: ast.AST, done: str) -> NotInSubset:
        return NotInSubset(done, f"{self._name}:{getattr(node, 'lineno', 0)}")

    def _top_level(self, node: ast.stmt) -> None:
        """Check that the top level has only imports, constants and functions."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES or (alias.asname is None and alias.name != "nki"):
                    raise self._refuse("import", node, f"import {alias.name}")
                self._bind(alias.asname or alias.name, node)
                self._modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        elif isinstance(node, ast.FunctionDef):
            self._bind(node.name, node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._global(node)
        elif type(node) in REFUSED:
            raise self._refuse("syntax", node, f"{REFUSED[type(node)]} at module level")
        elif not _is_docstring(node):
            raise self._refuse("purity", node, f"{type(node).__name__} at module level")

    def _global(self, node: ast.Assign | ast.AnnAssign) -> None:
        if isinstance(node, ast.Assign):
            targets = node.targets
        else:
            targets = [node.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                raise self._refuse(
                    "purity", node, "a module-level assignment to something other than a name"
                )
            self._bind(target.id, node)
        if node.value is None or not _constant(node.value):
            raise self._refuse("purity", node, "a module global that is not a constant")

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        top = module.split(".")[0]
        elsewhere = top in FOREIGN or (top in sys.stdlib_module_names and top != "__future__")
        if node.level or elsewhere or (top == "nki" and module not in MODULES):
            raise self._refuse("import", node, f"from {'.' * node.level}{module} import")
        for alias in node.names:
            if alias.name == "*":
                raise self._refuse("import", node, f"from {module} import *")
            if module == "nki" and f"nki.{alias.name}" in MODULES:
                self._modules[alias.asname or alias.name] = f"nki.{alias.name}"
            elif module in MODULES:
                raise self._refuse("import", node, f"from {module} import {alias.name}")
            self._bind(alias.asname or alias.name, node)

    def _bind(self, name: str, node: ast.AST) -> None:
        if name in self._globals:
            raise self._refuse("purity", node, f"module name {name} bound twice")
        self._globals.add(name)

    def _function(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        if arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
            raise self._refuse(
                "syntax",
                node,
                f"{node.name} has keyword-only, positional-only or starred parameters",
            )
        for default in arguments.defaults:
            if not _constant(default):
                raise self._refuse(
                    "kernel-arguments", default, f"default of a parameter of {node.name}"
                )
        for decorator in node.decorator_list:
            if not self._is_member(decorator, "nki", "jit"):
                rule = "jit" if isinstance(decorator, ast.Call) else "sub-kernel"
                raise self._refuse(
                    rule, node, f"{node.name} is decorated with {ast.unparse(decorator)}"
                )
        for position, child in enumerate(node.body):
            if position or not _is_docstring(child):
                self._walk(child, strings=False)

    def _is_module(self, node: ast.Attribute, module: str) -> bool:
        return isinstance(node.value, ast.Name) and self._modules.get(node.value.id) == module

    def _is_member(self, node: ast.AST, module: str, name: str) -> bool:
        """Whether an expression is the member `name` of an nki module."""
        return (
            isinstance(node, ast.Attribute) and node.attr == name and self._is_module(node, module)
        )

    def _walk(self, node: ast.AST, *, strings: bool) -> None:
        """Check a node of a function body and everything below it; strings : whether f-strings are
        allowed."""
        if isinstance(node, ast.FunctionDef):
            raise self._refuse("syntax", node, f"nested function {node.name}")
        self._refuse_forms(node, strings)
        if isinstance(node, ast.Call):
            strings = strings or (isinstance(node.func, ast.Name) and node.func.id == "print")
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Assert):
            strings = True
        elif (
            isinstance(node, ast.Name)
            and hasattr(builtins, node.id)
            and node.id not in self._bound | self._globals
        ):
            raise self._outside(node, f"the built-in {node.id}")
        for child in ast.iter_child_nodes(node):
            self._walk(child, strings=strings)

    def _refuse_forms(self, node: ast.AST, strings: bool) -> None:
        if type(node) in REFUSED:
            raise self._refuse("syntax", node, REFUSED[type(node)])
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise self._refuse(
                "purity", node, f"{type(node).__name__.lower()} {', '.join(node.names)}"
            )
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            raise self._refuse("import", node, "an import inside a function")
        if isinstance(node, ast.Compare) and any(
            isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops
        ):
            raise self._refuse("syntax", node, "is or is not")
        if isinstance(node, ast.JoinedStr) and not strings:
            raise self._refuse("syntax", node, "an f-string outside assert and print")
        if isinstance(node, ast.Dict) and not all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys
        ):
            raise self._refuse("syntax", node, "a dict with keys that are not string literals")
        if isinstance(node, ast.For) and not isinstance(node.target, ast.Name):
            raise self._refuse("loop-target", node, f"for {ast.unparse(node.target)} in")
        if isinstance(node, ast.keyword) and node.arg is None:
            raise self._refuse("syntax", node, "starred keywords")
        if isinstance(node, ast.With) and not all(map(self._is_no_reorder, node.items)):
            raise self._refuse("syntax", node, "with (only nl.no_reorder() is known)")

    def _is_no_reorder(self, item: ast.withitem) -> bool:
        call = item.context_expr
        return (
            isinstance(call, ast.Call)
            and self._is_member(call.func, "nki.language", "no_reorder")
            and item.optional_vars is None
        )

    def _attribute(self, node: ast.Attribute) -> None:
        """Check attributes of tensors and lists; members of nki's modules are checked by the
        interpreter."""
        inner = node.value
        module = isinstance(inner, ast.Name) and inner.id in self._modules
        member = isinstance(inner, ast.Attribute) and self._is_module(inner, "nki.isa")
        if not module and not member and node.attr not in ATTRIBUTES:
            raise self._outside(node, f"attribute .{node.attr}")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _constant(node: ast.expr) -> bool:
    """Whether an expression is an immutable constant: literals, tuples, arithmetic, names,
    members."""
    if isinstance(node, ast.Tuple):
        return all(_constant(part) for part in node.elts)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.Attribute):
        return _constant(node.value)
    return isinstance(node, (ast.Constant, ast.Name))
