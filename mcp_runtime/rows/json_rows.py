"""Many rows as one value, which the database writes as JSON. It is faster than rows that Django converts one by one."""

from __future__ import annotations

from typing import Any

from django.db.models import Func, QuerySet, TextField
from django.db.models.functions import JSONArray


class _AllRows(Func):
    """One JSON array of all rows. Not an Aggregate, for which Django would group the rows."""

    output_field = TextField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSON_GROUP_ARRAY", **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSONB_AGG", **context)


def as_value(rows: QuerySet[Any], *columns: str) -> QuerySet[Any, Any]:
    """One row with one text: a JSON array with an array of these columns for each row, in any order.

    PostgreSQL returns None in place of an empty array. It may be a subquery.
    """
    value: QuerySet[Any, Any] = rows.order_by().annotate(all_rows=_AllRows(JSONArray(*columns)))
    return value.values_list("all_rows", flat=True)
