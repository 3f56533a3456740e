"""Two changes to the Jinja language of chat templates: Hugging Face's generation tag, and metering.

`Metering` rewrites a parsed template so that what would run inside compiled code (loop iterations,
comparisons, literals, slices, the operator `~`) becomes a call of a method of `sandbox.MeteredEnvironment`.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


class GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's words for training; here it is nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Metering(NodeTransformer):
    """`Metering().visit(tree)` returns the tree with its calls of `checkpoint`, `glue`, `weigh` and `cut`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("checkpoint", [])))
        if node.test is not None:
            node.test = nodes.And(_call("checkpoint", []), node.test)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        return _call("checkpoint", [node])

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _call("glue", node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _call("weigh", [node])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _call("weigh", [node])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _call("weigh", [node]) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _call("cut", [node.node, *(bound or nodes.Const(None) for bound in bounds)])


def _call(method: str, args: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None)
