"""Calls by second and how they ended, with the faults above: an SVG made here, that needs nothing to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from tests.storm.ledger import Told
from tests.storm.reckoning import Strike

WIDTH, CALLS, LANE, LEFT = 1000, 200, 14, 150  # pixels: of all, of the bars' height, of a fault's lane, before time 0
GOOD, BAD, FAULT = "#4c9a6a", "#c0483c", "#5b6bb5"


def picture(told: Sequence[Told], strikes: Sequence[Strike], began_at: float, seconds: float) -> str:
    lanes = sorted({strike.fault for strike in strikes})
    top = LANE * (len(lanes) + 1)
    scale = (WIDTH - LEFT) / max(seconds, 1.0)
    parts = [_text(4, LANE * (number + 1), name) for number, name in enumerate(lanes)]
    for strike in strikes:
        begin = strike.fired_at - began_at
        end = min(strike.end - began_at, seconds)
        place = LANE * (lanes.index(strike.fault) + 1) - 9
        width = max((end - begin) * scale, 2.0)
        title = escape(f"{strike.fault} {strike.member} at {begin:.1f} s")
        parts.append(
            f'<rect x="{LEFT + begin * scale:.1f}" y="{place}" width="{width:.1f}" height="10" fill="{FAULT}" '
            f'fill-opacity="0.6"><title>{title}</title></rect>'
        )
    parts += _bars(told, began_at, seconds, scale, top)
    axis = top + CALLS + 16
    step = max(round(seconds / 10), 1)
    parts += [_text(LEFT + second * scale, axis, f"{second} s") for second in range(0, round(seconds) + 1, step)]
    parts.append(_text(4, top + 20, "calls a second:", GOOD) + _text(4, top + 36, "succeeded", GOOD))
    parts.append(_text(4, top + 52, "all other ends", BAD))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {axis + 8}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bars(told: Sequence[Told], began_at: float, seconds: float, scale: float, top: int) -> list[str]:
    good, bad = Counter[int](), Counter[int]()
    for one in told:
        (good if one.end == "succeeded" else bad)[int(one.told_at - began_at)] += 1
    most = max((good[second] + bad[second] for second in (*good, *bad)), default=1)
    bars = []
    for second in range(int(seconds) + 1):
        y = float(top + CALLS)
        for count, colour in ((good[second], GOOD), (bad[second], BAD)):
            height = CALLS * count / most
            y -= height
            if count:
                bars.append(
                    f'<rect x="{LEFT + second * scale:.1f}" y="{y:.1f}" width="{max(scale * 0.9, 0.5):.2f}" '
                    f'height="{height:.1f}" fill="{colour}"><title>second {second}: {count}</title></rect>'
                )
    return bars


def _text(x: float, y: float, text: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(text)}</text>'
