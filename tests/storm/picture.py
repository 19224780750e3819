"""A picture of the calls of each second and their outcomes, with the faults above. It is an SVG without other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from tests.storm.ledger import CallRecord
from tests.storm.reckoning import Strike

WIDTH, CALLS_HEIGHT, LANE_HEIGHT, LEFT = 1000, 200, 14, 150  # in pixels
SUCCESS_COLOUR, FAILURE_COLOUR, FAULT_COLOUR = "#4c9a6a", "#c0483c", "#5b6bb5"


def picture(records: Sequence[CallRecord], strikes: Sequence[Strike], began_at: float, seconds: float) -> str:
    lanes = sorted({strike.fault for strike in strikes})
    top = LANE_HEIGHT * (len(lanes) + 1)
    scale = (WIDTH - LEFT) / max(seconds, 1.0)
    parts = [_text(4, LANE_HEIGHT * (number + 1), name) for number, name in enumerate(lanes)]
    for strike in strikes:
        begin = strike.fired_at - began_at
        end = min(strike.end - began_at, seconds)
        bar_y = LANE_HEIGHT * (lanes.index(strike.fault) + 1) - 9
        width = max((end - begin) * scale, 2.0)
        title = escape(f"{strike.fault} {strike.member} at {begin:.1f} s")
        parts.append(
            f'<rect x="{LEFT + begin * scale:.1f}" y="{bar_y}" width="{width:.1f}" height="10" fill="{FAULT_COLOUR}" '
            f'fill-opacity="0.6"><title>{title}</title></rect>'
        )
    parts += _bars(records, began_at, seconds, scale, top)
    axis = top + CALLS_HEIGHT + 16
    step = max(round(seconds / 10), 1)
    parts += [_text(LEFT + second * scale, axis, f"{second} s") for second in range(0, round(seconds) + 1, step)]
    parts.append(
        _text(4, top + 20, "calls a second:", SUCCESS_COLOUR) + _text(4, top + 36, "succeeded", SUCCESS_COLOUR)
    )
    parts.append(_text(4, top + 52, "all other ends", FAILURE_COLOUR))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {axis + 8}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bars(records: Sequence[CallRecord], began_at: float, seconds: float, scale: float, top: int) -> list[str]:
    successes, failures = Counter[int](), Counter[int]()
    for record in records:
        (successes if record.end == "succeeded" else failures)[int(record.ended_at - began_at)] += 1
    highest = max((successes[second] + failures[second] for second in (*successes, *failures)), default=1)
    bars = []
    for second in range(int(seconds) + 1):
        y = float(top + CALLS_HEIGHT)
        for count, colour in ((successes[second], SUCCESS_COLOUR), (failures[second], FAILURE_COLOUR)):
            height = CALLS_HEIGHT * count / highest
            y -= height
            if count:
                bars.append(
                    f'<rect x="{LEFT + second * scale:.1f}" y="{y:.1f}" width="{max(scale * 0.9, 0.5):.2f}" '
                    f'height="{height:.1f}" fill="{colour}"><title>second {second}: {count}</title></rect>'
                )
    return bars


def _text(x: float, y: float, text: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(text)}</text>'
