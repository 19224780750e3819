"""Querysets whose SQL is generated once, for queries of every call. Generating it takes longer than executing it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import Expression, Model, QuerySet

from mcp_runtime.rows import plain_sql

M = TypeVar("M", bound=Model)


class Placeholder(Expression):
    """A placeholder in a compiled query. Each execution passes its value, in the form of the database."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def as_sql(self, *_: Any, **__: Any) -> Any:
        return "%s", (self,)


class CompiledQuery(Generic[M]):
    """The queryset `rows()`. It is called once, so its conditions are placeholders or constants.

    columns      the columns to read, or all if there are none. The others are deferred, as by `only`
    related      the columns of related objects, by the names of the foreign keys
    annotations  names of the queryset's annotations

    There is one for each process, and so for one database.
    """

    def __init__(
        self,
        rows: Callable[[], QuerySet[M]],
        *,
        columns: Collection[str] = (),
        related: Mapping[str, Collection[str]] | None = None,
        annotations: Sequence[str] = (),
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._related = related or {}
        self._annotations = annotations

    def first(self, **values: Any) -> M | None:
        rows = self.read(limit=1, **values)
        return rows[0] if rows else None

    def read(
        self, *, limit: int | None = None, ending: str = "", ending_values: Sequence[Any] = (), **values: Any
    ) -> list[M]:
        """Read at most `limit` objects. `values` has a value for each placeholder. `ending` is more SQL."""
        sql, parameters, model_columns, related = self._compilation
        arguments = [values[each.name] if isinstance(each, Placeholder) else each for each in parameters]
        sql, arguments = sql + ending, [*arguments, *ending_values]
        if limit is not None:
            sql, arguments = f"{sql} LIMIT %s", [*arguments, limit]
        return [self._instance(model_columns, related, row) for row in plain_sql.read(sql, arguments)]

    @cached_property
    def _compilation(self) -> tuple[str, Sequence[Any], _Columns, dict[str, _Columns]]:
        rows = self._rows()
        model_columns = _Columns(rows.model, self._columns)
        related = {
            name: _Columns(rows.model._meta.get_field(name).related_model, columns)
            for name, columns in self._related.items()
        }
        names = [*model_columns.names, *(f"{key}__{name}" for key, of_key in related.items() for name in of_key.names)]
        sql, parameters = rows.values_list(*names, *self._annotations).query.sql_with_params()
        return sql, parameters, model_columns, related

    def _instance(self, model_columns: _Columns, related: dict[str, _Columns], row: Sequence[Any]) -> M:
        end = len(model_columns.names)
        instance: M = model_columns.instance(row[:end])
        for key, columns in related.items():
            begin, end = end, end + len(columns.names)
            setattr(instance, key, columns.instance(row[begin:end]))
        for name, value in zip(self._annotations, row[end:], strict=True):
            setattr(instance, name, value)
        return instance


class _Columns:
    """The columns of one object in a row."""

    def __init__(self, model: Any, names: Collection[str]) -> None:
        self._model = model
        # In the order of the model, because `from_db` requires that.
        fields = [field for field in model._meta.concrete_fields if not names or field.attname in {"id", *names}]
        self.names = [field.attname for field in fields]
        readers = [_reader(field.get_col(model._meta.db_table)) for field in fields]
        self._readers = [(place, read) for place, read in enumerate(readers) if read is not None]

    def instance(self, row: Sequence[Any]) -> Any:
        """Create the object from its part of a row."""
        values = list(row)
        for place, read in self._readers:
            values[place] = read(values[place])
        return self._model.from_db(DEFAULT_DB_ALIAS, self.names, values)


def _reader(column: Any) -> Callable[[Any], Any] | None:
    """A function that converts the driver's value to Django's value. None if they are the same."""
    database = connections[DEFAULT_DB_ALIAS]
    converters = [*database.ops.get_db_converters(column), *column.get_db_converters(database)]

    def read(value: Any) -> Any:
        for convert in converters:
            value = convert(value, column, connection)
        return value

    return read if converters else None
