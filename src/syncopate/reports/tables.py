"""Tables: the one look of tables, and of their rows where a terminal is too narrow for columns."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text

from syncopate.errors import one_line

_LEAST = 18
"""Columns of text that may be folded are folded to no less than this, unless they are narrower."""

_ANY = 10_000
"""Columns of a terminal that has room for every table."""


class ReportTable(Table):
    """A table whose cells say what they say, and whose rows can always be read.

    Text is no markup: a tensor may be named ``x[/red]``. On a terminal too narrow for its columns a
    table becomes a list: each row its first cell, and below it the others, each after its heading.
    """

    def add_column(self, header: RenderableType = "", *args: Any, **how: Any) -> None:
        """Add a column; a heading is taken as it is."""
        super().add_column(escape(header) if isinstance(header, str) else header, *args, **how)

    def add_figures(self, *headings: str) -> None:
        """Add columns of figures, which stand to the right and are not folded."""
        for heading in headings:
            self.add_column(heading, justify="right", no_wrap=True)

    def add_row(
        self,
        *renderables: RenderableType | None,
        style: StyleType | None = None,
        end_section: bool = False,
    ) -> None:
        """Add a row; strings are taken as they are, in one line."""
        cells = (escape(one_line(cell)) if isinstance(cell, str) else cell for cell in renderables)
        super().add_row(*cells, style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        spare = options.max_width - self._least_width(console, options)
        if spare < 0:
            yield from self._rows()
            return
        # Rich would take the room from the longest column alone, and break the words of short ones.
        folded = [column for column in self.columns if _widest(column) > _narrowest(column)]
        for column in sorted(folded, key=lambda column: _widest(column) - _narrowest(column)):
            more = min(spare, _widest(column) - _narrowest(column))
            column.width, spare = _narrowest(column) + more, spare - more
        try:
            yield from super().__rich_console__(console, options)
        finally:
            for column in folded:
                column.width = None

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        if self._least_width(console, options) <= options.max_width:
            return super().__rich_measure__(console, options)
        return Measurement(options.max_width, options.max_width)

    def _least_width(self, console: Console, options: ConsoleOptions) -> int:
        """Return how many columns of the terminal show this without breaking words for room."""
        whole = super().__rich_measure__(console, options.update(width=_ANY)).maximum
        return whole - sum(_widest(column) - _narrowest(column) for column in self.columns)

    def _rows(self) -> RenderResult:
        if self.title:
            yield Text.from_markup(str(self.title), style=self.title_style or "")
        heads = [_heading(column) for column in self.columns]
        columns = [_texts(column)[1:] for column in self.columns]
        for index, row in enumerate(self.rows):
            first, *others = (cells[index] for cells in columns)
            style = str(row.style or "")
            yield Text.assemble(" ", first, style=f"{style} bold")
            told = [
                Text.assemble(f"{name} ", cell)
                for name, cell in zip(heads[1:], others, strict=True)
                if cell
            ]
            yield Padding(Text(", ", style=style).join(told), (0, 0, 0, 4), style=style)
            if row.end_section:
                yield Text("")
        if self.caption:
            yield Text.from_markup(str(self.caption), style="dim")
        yield Text("")


def titled_table(title: str) -> ReportTable:
    """Return an empty table under a quiet title."""
    return ReportTable(
        title=escape(f" {one_line(title)}"),
        title_justify="left",
        title_style="dim",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell), emoji=False)


def _heading(column: Column) -> str:
    return str(column.header).replace("-\n", "").replace("\n", " ").strip()


def _texts(column: Column) -> list[Text]:
    return [_text(cell) for cell in (column.header, *column.cells)]


def _widest(column: Column) -> int:
    return max(line.cell_len for text in _texts(column) for line in text.split(allow_blank=True))


def _narrowest(column: Column) -> int:
    """Return the least width of a column: whole headings, and words as far as they are short."""
    if column.no_wrap:
        return _widest(column)
    head, *cells = (
        max((Text(word).cell_len for word in text.plain.split()), default=0)
        for text in _texts(column)
    )
    return min(_widest(column), max(head, min(max(cells, default=0), _LEAST)))
