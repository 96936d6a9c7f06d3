"""The words in which a codemod is declared.

A codemod is one file in `codemods/`. It holds a docstring (what is found, why the native device makes
it needless, when it is only marked), `codemod = Codemod(__name__)`, rows for single names and handlers
for idioms. Rows and handlers *decide*: they read the original tree through a Site and answer with
findings and edits; they change nothing themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import libcst as cst

from neuronmigrate.plan import Numerics

if TYPE_CHECKING:
    from neuronmigrate.loads.arguments import Table
    from neuronmigrate.site import Site, Use

UseHandler = Callable[["Site", "Use"], None]
SiteHandler = Callable[["Site"], None]
HandlerT = TypeVar("HandlerT", bound=Callable[..., None])


@dataclass(frozen=True)
class Rename:
    """The name stands for another one; nothing else at that spot changes."""

    new: str


@dataclass(frozen=True)
class Call:
    """A call becomes an expression.

    `template` is an expression in fully qualified names (`torch.device("neuron")`); imports follow from
    it. `{name}` holes are bound from the call through `args`, the legacy parameters in order, of which
    those in `dropped` may be given and go. A call with any other argument, and a use that is not a
    call, is marked. A template that is a constant, such as `True`, decides what asks for it: the branch
    that stays takes the place of the question.
    """

    template: str
    args: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drop:
    """A call that stands alone as a statement goes; any other use is marked."""


@dataclass(frozen=True)
class Manual:
    """Left for a person, with the advice of the row."""


Action = Rename | Call | Drop | Manual


@dataclass(frozen=True)
class Symbol:
    """One legacy name and what becomes of it."""

    old: str
    action: Action
    because: str
    """Why, as one sentence without a full stop: the text of the report."""
    todo: str = ""
    """What a person has to look at. It makes a rewrite a review, and is the advice of a mark."""
    numerics: Numerics = Numerics.SAME


class Codemod:
    """One subject: its rows and its handlers, registered as the file is loaded."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.name = module.rpartition(".")[2].replace("_", "-")
        self.doc = ""
        self.symbols: dict[str, Symbol] = {}
        self.use_handlers: dict[str, UseHandler] = {}
        self.known_handlers: list[SiteHandler] = []
        self.node_handlers: list[tuple[type[cst.CSTNode], Callable[..., None]]] = []
        self.site_handlers: list[SiteHandler] = []
        self.rest_handler: UseHandler | None = None
        self.twins: dict[str, str] = {}
        """The native name that does the same, where a branch on versions may choose between the two."""
        self.tables: list[Table] = []
        """What becomes of the arguments of its calls, where it has tables of them."""

    def symbol(
        self,
        old: str,
        action: Action,
        *,
        because: str,
        todo: str = "",
        numerics: Numerics = Numerics.SAME,
    ) -> None:
        """Add a row. Raises ValueError for a name that has one, or a row without a reason."""
        if not because:
            raise ValueError(f"{self.name}: {old} needs a reason")
        self._claim(old)
        self.symbols[old] = Symbol(old, action, because, todo, numerics)

    def uses(self, names: Iterable[str]) -> Callable[[UseHandler], UseHandler]:
        """Decorate the function that decides on each use of these legacy names."""

        def register(handler: UseHandler) -> UseHandler:
            for name in names:
                self._claim(name)
                self.use_handlers[name] = handler
            return handler

        return register

    def on(self, *kinds: type[cst.CSTNode]) -> Callable[[HandlerT], HandlerT]:
        """Decorate a function that looks at every node of these kinds.

        It runs only for nodes of those kinds, so its second parameter may name them.
        """

        def register(handler: HandlerT) -> HandlerT:
            self.node_handlers.extend((kind, handler) for kind in kinds)
            return handler

        return register

    def knows(self, handler: SiteHandler) -> SiteHandler:
        """Decorate a function that runs once for each file, before anything is decided there.

        It says by `site.know` which expressions have one value natively.
        """
        self.known_handlers.append(handler)
        return handler

    def once(self, handler: SiteHandler) -> SiteHandler:
        """Decorate a function that runs once for each file."""
        self.site_handlers.append(handler)
        return handler

    def rest(self, handler: UseHandler) -> UseHandler:
        """Decorate the function that gets each legacy use that no other codemod answered."""
        self.rest_handler = handler
        return handler

    @property
    def claimed(self) -> frozenset[str]:
        """The legacy names that this codemod answers for."""
        return frozenset(self.symbols) | frozenset(self.use_handlers)

    def _claim(self, name: str) -> None:
        if name in self.symbols or name in self.use_handlers:
            raise ValueError(f"{self.name}: {name} is declared twice")
