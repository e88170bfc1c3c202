"""How figures look: a protocol has the same colour, marker and place in every one of them, whatever else is shown."""

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from runners.rundir import ROOT

# Okabe and Ito's palette: distinct in print and for colour-blind readers; yellow is left out, it is too pale on paper.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "os^DvPX*"
HATCHES = ("", "////", "....", "\\\\\\\\", "xx", "--", "++", "oo")
plt.rcParams.update(
    {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.5,
        "legend.frameon": False,
        "hatch.linewidth": 0.5,
        "pdf.fonttype": 42,  # letters stay letters in the PDF, as publishers ask
    }
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one protocol is drawn."""

    name: str
    place: int

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")

    @property
    def colour(self) -> str:
        return PALETTE[self.place % len(PALETTE)]

    @property
    def marker(self) -> str:
        return MARKERS[self.place % len(MARKERS)]

    @property
    def hatch(self) -> str:
        return HATCHES[self.place % len(HATCHES)]


def known_protocols() -> list[str]:
    return sorted(path.stem for path in (ROOT / "configs" / "protocol").glob("*.yaml"))


def looks(names: Iterable[str]) -> list[Look]:
    """The looks of these protocols, in order. Known ones keep their places; unknown ones come after them."""
    known = known_protocols()
    wanted = set(names)
    everyone = [*known, *sorted(wanted - set(known))]
    return [Look(name=name, place=place) for place, name in enumerate(everyone) if name in wanted]


def panels(rows: int, columns: int, *, width: float = 3.1, height: float = 2.5, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes as a two-dimensional array; wide enough for the legend below even with one column."""
    size = (max(6.4, width * columns + 0.6), height * rows + 0.9)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)


def finish(figure: Any, axes: Iterable[Any], title: str, note: str, handles: Sequence[Any] = ()) -> Any:
    """Title above; below one legend for all axes, headed by the note (n, and what was left out).

    The note is the legend's title because matplotlib makes room for legends, but not for other text below them.
    """
    figure.suptitle(title, fontsize=11)
    found = {handle.get_label(): handle for handle in handles}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    letters = int(figure.get_figwidth() * 17)
    longest = max((len(label) for label in found), default=1)
    rows = math.ceil(len(found) / max(1, int(letters / (longest + 8))))
    figure.legend(
        found.values(), found.keys(), loc="outside lower center", fontsize=8.5, frameon=False,
        ncols=max(1, math.ceil(len(found) / max(rows, 1))),
        title=textwrap.fill(note, letters), title_fontsize=7.5,
    )  # fmt: skip
    return figure


def log_numbers(axis: Any) -> None:
    """Plain numbers at 1, 2 and 5 of every power of ten."""
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Any, directory: Path, name: str) -> Path:
    """As PNG and PDF; returns the PNG's path."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{name}.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150)
    # 64 colours are more than a figure has, its soft edges included, and make a third of the file.
    Image.open(drawn).convert("RGB").quantize(64).save(target, optimize=True)
    figure.savefig(directory / f"{name}.pdf", metadata={"CreationDate": None})
    plt.close(figure)
    return target
