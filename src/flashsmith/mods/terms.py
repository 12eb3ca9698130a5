"""Graph values with algebraic operators: constants are folded."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.mods.graph import Graph

# Within these bounds, a product of constants is a normal float32 with full precision.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127


@dataclass(frozen=True)
class Term:
    """A value of a graph. Operators add nodes to the graph; operations on constants are folded."""

    graph: Graph
    place: int

    @property
    def number(self) -> float | None:
        """The constant's value; None if the value is known in the kernel alone."""
        value = self.graph.constant_value(self.place)
        return None if value is None else float(value)

    def like(self, value: float) -> Term:
        """Returns a constant of the same graph."""
        return Term(self.graph, self.graph.constant(float(value)))

    def apply(self, name: str, *others: Term | float) -> Term:
        """Returns an operation of OPERATIONS, without folding."""
        places = (self._term(other).place for other in others)
        return Term(self.graph, self.graph.apply(name, self.place, *places))

    def choose(self, yes: Term | float, no: Term | float) -> Term:
        """Returns ``yes`` or ``no``, selected by this condition."""
        first, second = self._term(yes), self._term(no)
        if first == second:
            return first
        return Term(self.graph, self.graph.where(self.place, first.place, second.place))

    def __add__(self, other: Term | float) -> Term:
        other = self._term(other)
        if self.number is not None and other.number is not None:
            return self.like(self.number + other.number)
        if self.number == 0:
            return other
        if self == other:
            return 2.0 * self
        return self if other.number == 0 else self.apply("add", other)

    def __sub__(self, other: Term | float) -> Term:
        return self.apply("sub", other)

    def __mul__(self, other: Term | float) -> Term:
        other = self._term(other)
        if other.number is not None:
            return self._scaled(other.number)
        if self.number is not None:
            return other._scaled(self.number)
        return self.apply("mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        other = self._term(other)
        if self.number is not None and other.number:
            return self.like(self.number / other.number)
        return self.apply("div", other)

    def __neg__(self) -> Term:
        return self._scaled(-1.0)

    def __radd__(self, other: float) -> Term:
        return self._term(other) + self

    def __rsub__(self, other: float) -> Term:
        return self._term(other) - self

    def __rmul__(self, other: float) -> Term:
        return self._term(other) * self

    def __rtruediv__(self, other: float) -> Term:
        return self._term(other) / self

    def _term(self, value: Term | float) -> Term:
        return value if isinstance(value, Term) else self.like(value)

    def _scaled(self, factor: float) -> Term:
        if self.number is not None:
            return self.like(factor * self.number)
        if factor == 0:
            return self.like(0)
        known, rest = self._factors()
        product = self.like(factor * known)
        if not _SMALLEST <= abs(product.number or 0) <= _LARGEST:
            return self.like(factor).apply("mul", self)
        if product.number == 1:
            return rest
        return rest.apply("neg") if product.number == -1 else product.apply("mul", rest)

    def _factors(self) -> tuple[float, Term]:
        """Returns the factor of a product that ``_scaled`` wrote, and the rest; 1.0 for other
        values."""
        node = self.graph.nodes[self.place]
        operands = [Term(self.graph, operand) for operand in node.operands]
        if node.operation == "neg":
            return -1.0, operands[0]
        if node.operation == "mul" and operands[0].number is not None:
            return operands[0].number, operands[1]
        return 1.0, self
