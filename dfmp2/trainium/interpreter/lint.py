"""Source rules for kernel files: what the parsers of NKI 0.3.0 to 0.6.0 and the tracer of 0.7.0 all accept.

The lint reads the file alone and covers all five releases, whatever release a run emulates. A file that sets the
module constant DYNAMIC_LOOPS = True is exempt for loop names and loop-body functions only.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

from dfmp2.trainium.interpreter.rules import NotInSubset, Violation
from dfmp2.trainium.interpreter.signatures import (
    COMMON_NAMES,
    DEPRECATED_LOOPS,
    ENUMERATIONS,
    INSTRUCTIONS,
    LOOP_NAMES,
    in_all_releases,
    required_somewhere,
)

ENUM_PARAMETERS = frozenset(ENUMERATIONS)
BUILTINS = ("range", "len", "min", "max", "print")
MODULES = {"nki": "nki", "nki.language": "nl", "nki.isa": "nisa"}
EXEMPTION = "DYNAMIC_LOOPS"
FOREIGN = ("numpy", "neuronxcc", "torch", "jax")
ATTRIBUTES = frozenset(("shape", "dtype", "buffer", "ap", "append"))
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


def check_call(node: ast.Call, name: str, file: str, *, all_releases: bool) -> None:
    """A call of nisa.<name>: an instruction of the subset, keywords only, parameters that every release has.

    all_releases : False skips the comparison of parameters (files that need newer releases say so).
    """
    place = f"{file}:{node.lineno}"
    if name not in INSTRUCTIONS:
        raise NotInSubset(f"nisa.{name}", place)
    if node.args:
        raise Violation("positional", f"nisa.{name} with {len(node.args)} positional arguments", place)
    given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    if not all_releases or len(given) != len(node.keywords):
        return
    unknown = given - in_all_releases(name)
    missing = required_somewhere(name) - given
    if unknown or missing:
        words = [f"{word} is not in every release" for word in sorted(unknown)]
        words += [f"{word} is required in some release" for word in sorted(missing)]
        raise Violation("signature", f"nisa.{name}: {'; '.join(words)}", place)


def unknown_attribute(name: str) -> str:
    """Why nl.<name> may not be used; "" if it may."""
    if name in DEPRECATED_LOOPS:
        return f"nl.{name} is deprecated; use range"
    return "" if name in COMMON_NAMES or name in LOOP_NAMES else f"nl.{name}"


def lint(text: str, name: str) -> None:
    """Refuses kernel source that breaks a source rule.

    Parameters
    ----------
    text : the source; name : short file name for messages

    Raises
    ------
    Violation : with the rule and "name:line"
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:  # ValueError: null characters, in some versions of Python
        line = getattr(error, "lineno", None)
        raise Violation("syntax", f"not Python: {error}", f"{name}:{line}" if line else name) from error
    Lint(tree, name).check()


class Lint:
    """One pass over one file."""

    def __init__(self, tree: ast.Module, name: str) -> None:
        self._tree = tree
        self._name = name
        self._modules: dict[str, str] = {}
        self._globals: set[str] = set()
        self._kernels: set[str] = set()
        self._bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not _is_read(node)}
        self._bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self._exempt = any(_is_exemption(node) for node in tree.body)

    def check(self) -> None:
        """All rules, in the order of the file's top level."""
        for node in self._tree.body:
            self._collect(node)
        for node in self._tree.body:
            self._top_level(node)
        for node in self._tree.body:
            if isinstance(node, ast.FunctionDef):
                self._function(node, inner=False)

    def _refuse(self, rule: str, node: ast.AST, done: str) -> Violation:
        return Violation(rule, done, f"{self._name}:{getattr(node, 'lineno', 0)}")

    def _outside(self, node: ast.AST, done: str) -> NotInSubset:
        return NotInSubset(done, f"{self._name}:{getattr(node, 'lineno', 0)}")

    def _collect(self, node: ast.stmt) -> None:
        """Imports, constants and function names."""
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
            if node.decorator_list:
                self._kernels.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if not isinstance(target, ast.Name):
                    raise self._refuse("purity", node, "a module-level assignment to something other than a name")
                self._bind(target.id, node)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        top = module.split(".")[0]
        if node.level or top in FOREIGN or (top in sys.stdlib_module_names and top != "__future__"):
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

    def _top_level(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is None or not _constant(node.value):
                raise self._refuse("purity", node, "a module global that is not a constant")
            return
        if type(node) in REFUSED:
            raise self._refuse("syntax", node, f"{REFUSED[type(node)]} at module level")
        raise self._refuse("purity", node, f"{type(node).__name__} at module level")

    def _function(self, node: ast.FunctionDef, *, inner: bool) -> None:
        self._signature(node, inner=inner)
        for child in _statements(node):
            self._walk(child, strings=False)

    def _signature(self, node: ast.FunctionDef, *, inner: bool) -> None:
        arguments = node.args
        if arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
            raise self._refuse("syntax", node, f"{node.name} has keyword-only, positional-only or starred parameters")
        for default in arguments.defaults:
            if not _constant(default):
                raise self._refuse("kernel-arguments", default, f"default of a parameter of {node.name}")
        for decorator in node.decorator_list:
            bare = (
                isinstance(decorator, ast.Attribute) and decorator.attr == "jit" and self._is_module(decorator, "nki")
            )
            if inner or not bare:
                rule = "jit" if isinstance(decorator, ast.Call) and not inner else "sub-kernel"
                raise self._refuse(rule, node, f"{node.name} is decorated with {ast.unparse(decorator)}")

    def _is_module(self, node: ast.Attribute, module: str) -> bool:
        return isinstance(node.value, ast.Name) and self._modules.get(node.value.id) == module

    def _walk(self, node: ast.AST, *, strings: bool) -> None:
        """One node of a function body and everything below it; strings : f-strings are allowed here."""
        if isinstance(node, ast.FunctionDef):
            if not self._exempt:
                raise self._refuse("syntax", node, f"nested function {node.name}")
            self._function(node, inner=True)
            return
        self._refuse_forms(node, strings)
        if isinstance(node, ast.Call):
            self._call(node)
            strings = strings or (isinstance(node.func, ast.Name) and node.func.id == "print")
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Assert):
            strings = True
        elif isinstance(node, ast.Name) and self._is_foreign_builtin(node.id):
            raise self._outside(node, f"the built-in {node.id}")
        for child in ast.iter_child_nodes(node):
            self._walk(child, strings=strings)

    def _is_foreign_builtin(self, name: str) -> bool:
        return hasattr(builtins, name) and name not in {*BUILTINS, *self._bound, *self._globals}

    def _refuse_forms(self, node: ast.AST, strings: bool) -> None:
        if type(node) in REFUSED:
            raise self._refuse("syntax", node, REFUSED[type(node)])
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise self._refuse("purity", node, f"{type(node).__name__.lower()} {', '.join(node.names)}")
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            raise self._refuse("import", node, "an import inside a function")
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            raise self._refuse("syntax", node, "is or is not")
        if isinstance(node, ast.JoinedStr) and not strings:
            raise self._refuse("syntax", node, "an f-string outside assert and print")
        if isinstance(node, ast.Dict) and not all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys
        ):
            raise self._refuse("syntax", node, "a dict with keys that are not string literals")
        if isinstance(node, ast.With) and not all(self._is_no_reorder(item) for item in node.items):
            raise self._refuse("syntax", node, "with (only nl.no_reorder() is known)")

    def _is_no_reorder(self, item: ast.withitem) -> bool:
        call = item.context_expr
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "no_reorder"
            and self._is_module(call.func, "nki.language")
        )

    def _call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name):
            if function.id in self._kernels:
                raise self._refuse("sub-kernel", node, f"call of the kernel {function.id}")
        elif isinstance(function, ast.Attribute):
            if function.attr == "ap" and isinstance(function.value, ast.Call):
                inner = function.value.func
                if isinstance(inner, ast.Attribute) and inner.attr == "ap":
                    raise self._refuse("ap-base", node, "chained ap()")
            if self._is_module(function, "nki.isa"):
                check_call(node, function.attr, self._name, all_releases=not self._exempt)
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._refuse("syntax", node, "starred keywords")
            constant = isinstance(keyword.value, ast.Constant)
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if constant and keyword.arg in ENUM_PARAMETERS and isinstance(value, int):
                raise self._refuse("enum-value", node, f"{keyword.arg}={value!r}")
            if constant and keyword.arg == "buffer" and isinstance(value, str):
                raise self._refuse("buffer-object", node, f"buffer={value!r}")

    def _attribute(self, node: ast.Attribute) -> None:
        module = self._modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if module == "nki.language":
            if node.attr in LOOP_NAMES and not self._exempt:
                raise self._refuse("release-name", node, f"nl.{node.attr} is not in every release")
            problem = unknown_attribute(node.attr)
            if problem:
                raise self._outside(node, problem)
        elif module == "nki":
            raise self._outside(node, f"nki.{node.attr} inside a function")
        elif module is None and not self._inside_enumeration(node) and node.attr not in ATTRIBUTES:
            raise self._outside(node, f"attribute .{node.attr}")

    def _inside_enumeration(self, node: ast.Attribute) -> bool:
        value = node.value
        return isinstance(value, ast.Attribute) and self._is_module(value, "nki.isa")


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _statements(node: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Body of a function without its docstring."""
    for position, child in enumerate(node.body):
        if position or not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield child


def _constant(node: ast.expr) -> bool:
    """Whether an expression can only be an immutable constant: literals, tuples, arithmetic, names, members."""
    if isinstance(node, ast.Tuple):
        return all(_constant(part) for part in node.elts)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.Attribute):
        return _constant(node.value)
    return isinstance(node, (ast.Constant, ast.Name))


def _is_exemption(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == EXEMPTION
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
    )
