"""Plots of calls as SVG from the server, without scripts or further files. They can be printed.

The plot stretches with the page, but its text does not. Shapes are paths in boxes with their own scale, and texts have
positions in percent. Colours are classes of static/roster/plots.css.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from mcp_runtime.calls.statistics import Series
from mcp_runtime.control.calls import SPARK_POINTS
from roster.admin import present

# The smallest height of a bar, of 100. So one call among thousands is visible.
LEAST_BAR = 4.0
GAP = 0.15  # between bars, as a fraction of each

# The format of the times of each span, and the distance of its labels in points.
_CLOCK = {"hour": ("%H:%M", 10), "day": ("%H:%M", 16), "week": ("%a %-d", 24)}
_SPAN_NAMES = {"hour": "last hour", "day": "last day", "week": "last week"}
_STEPS = {"hour": "minute", "day": "15 minutes", "week": "hour"}


@dataclass(frozen=True)
class Label:
    """A label of an axis, at this percentage of the width or height."""

    place: str
    text: str


@dataclass(frozen=True)
class Row:
    """A point in words, for tooltips and the table."""

    place: str
    width: str
    begins_at: datetime
    time: str
    calls: int
    failed: int
    p50: str
    p95: str


def spark(points: Sequence[tuple[int, int]] | None) -> SafeString:
    """The last hour as small bars. `points` are (calls, failed) of five minutes each, oldest first, or None."""
    bars = points or [(0, 0)] * SPARK_POINTS
    calls, failed = sum(point[0] for point in bars), sum(point[1] for point in bars)
    top = max(1, *(point[0] for point in bars))
    context = {
        "summary": f"Last hour: {_count(calls, 'call')}, {failed:,} failed" if calls else "Last hour: no calls",
        "width": len(bars),
        "calls": _bars((count for count, _ in bars), top),
        "failed": _bars((count for _, count in bars), top),
    }
    return SafeString(render_to_string("roster/spark.html", context))


def plot(series: Series) -> dict[str, object]:
    """The context of roster/plot.html."""
    points, total = series.points, series.total
    top_calls = _nice(max(point.calls for point in points))
    slowest = max((point.p95 or 0.0 for point in points), default=0.0)
    top_seconds = _nice(slowest * 1000) / 1000 if slowest else 0.0
    return {
        "span": series.span.name,
        "span_name": _SPAN_NAMES[series.span.name],
        "step": _STEPS[series.span.name],
        "total": total,
        "calls_text": f"{total.calls:,}",
        "failed_text": f"{total.failed:,}",
        "failed_part": _part(total.failed, total.calls),
        "p50": present.seconds(total.p50),
        "p95": present.seconds(total.p95),
        "width": len(points),
        "calls": _bars((point.calls for point in points), top_calls),
        "failed": _bars((point.failed for point in points), top_calls),
        "p50_line": _line([point.p50 for point in points], top_seconds),
        "p95_line": _line([point.p95 for point in points], top_seconds),
        "p50_dots": _dots([point.p50 for point in points], top_seconds),
        "p95_dots": _dots([point.p95 for point in points], top_seconds),
        "top_calls": f"{top_calls:,.0f}",
        "top_seconds": present.seconds(top_seconds),
        "times": _times(series),
        "rows": _rows(series),
    }


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _part(failed: int, calls: int) -> str:
    if not failed:
        return "0 %"
    part = 100 * failed / calls
    return "under 1 %" if part < 1 else f"{part:.0f} %"


def _nice(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten, at least 1."""
    if value <= 1:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.9999)


# Shapes, in boxes as wide as there are points, 100 high -----------------------------------------------------------


def _bars(values: Iterable[float], top: float) -> str:
    """The path of a bar for each value above 0."""
    heights = ((number, max(LEAST_BAR, 100 * value / top)) for number, value in enumerate(values) if value)
    return "".join(f"M{number + GAP / 2:g} 100v-{height:.4g}h{1 - GAP:g}v{height:.4g}z" for number, height in heights)


def _line(values: Sequence[float | None], top: float) -> str:
    """A path through the middles of the points, with gaps where there was no call."""
    path, drawing = [], False
    for number, value in enumerate(values):
        if value is None or not top:
            drawing = False
            continue
        path.append(f"{'L' if drawing else 'M'}{number + 0.5:g} {_height(value, top)}")
        drawing = True
    return "".join(path)


def _dots(values: Sequence[float | None], top: float) -> str:
    """Points without neighbours, which a line would not show."""
    padded = [None, *values, None]
    return "".join(
        f"M{number + 0.5:g} {_height(value, top)}h0"
        for number, value in enumerate(values)
        if value is not None and top and padded[number] is None and padded[number + 2] is None
    )


def _height(value: float, top: float) -> str:
    return f"{100 - 100 * min(1.0, value / top):.4g}"


# Words ------------------------------------------------------------------------------------------------------------


def _times(series: Series) -> list[Label]:
    """Labels with round times, under the points that begin then."""
    form, apart = _CLOCK[series.span.name]
    every = series.span.seconds * apart
    count = len(series.points)
    return [
        Label(f"{100 * (number + 0.5) / count:.2f}%", point.begins_at.strftime(form))
        for number, point in enumerate(series.points)
        if int(point.begins_at.timestamp()) % every == 0 and 0.03 < number / count < 0.97
    ]


def _rows(series: Series) -> list[Row]:
    width = 100 / len(series.points)
    return [
        Row(
            place=f"{number * width:.2f}%",
            width=f"{width:.2f}%",
            begins_at=point.begins_at,
            time=f"{point.begins_at:%Y-%m-%d %H:%M} UTC",
            calls=point.calls,
            failed=point.failed,
            p50=present.seconds(point.p50),
            p95=present.seconds(point.p95),
        )
        for number, point in enumerate(series.points)
        if point.calls
    ]
