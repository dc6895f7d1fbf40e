"""The pictures of the demo. Matplotlib without pyplot: no display, no global state.

Knows arrays and coordinates, but neither stores nor Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from examples.tsunami.shallow_water import Sea

Numbers = np.ndarray[Any, np.dtype[Any]]

INK = "#22313a"
FAINT = "#71808a"
GAUGES = ["#d1495b", "#00798c", "#edae49", "#5b3f8c", "#3d7d3a", "#444444"]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A tide gauge: the elevation at one point over time."""

    name: str
    latitude: float
    longitude: float
    elevation: Numbers
    """Elevation in metres, by time."""


def wave_figure(
    sea: Sea, seconds: Numbers, snapshots: Sequence[tuple[float, Numbers]], gauges: Sequence[Gauge]
) -> Figure:
    """Draw four maps of the elevation over relief, and below them the records of the gauges.

    `seconds` are the times of the records; a snapshot is a time in seconds and metres on the map.
    The colours are linear up to 10 cm and logarithmic beyond, because the late waves are small.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(12.5, 13.2), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.06))
    figure.suptitle(
        "A wave enters the Salish Sea: shallow-water equations over matplotlib's topobathy.npz",
        fontsize=14,
        color=INK,
        weight="bold",
    )
    grid = figure.add_gridspec(2, 1, height_ratios=(2.5, 1))
    maps, records = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    axes = maps.subplots(2, 2, sharex=True, sharey=True)
    colours = GAUGES[: len(gauges)]
    images = [
        _draw_map(ax, sea, second, elevation)
        for ax, (second, elevation) in zip(axes.flat, snapshots, strict=True)
    ]
    for ax in axes.flat:
        _mark_gauges(ax, gauges, colours)
    for ax in axes[-1]:
        ax.set_xlabel("longitude", color=INK)
    for ax in axes[:, 0]:
        ax.set_ylabel("latitude", color=INK)
    bar = maps.colorbar(images[0], ax=axes, shrink=0.75, extend="both", pad=0.015, format="{x:.0f}")
    bar.set_ticks([-100, -50, -20, -10, -5, 0, 5, 10, 20, 50, 100])
    bar.minorticks_off()
    bar.set_label("surface elevation (cm)", color=INK)
    _draw_records(records.subplots(), seconds, gauges, colours)
    return figure


def _draw_map(ax: Axes, sea: Sea, second: float, elevation: Numbers) -> AxesImage:
    from matplotlib.colors import SymLogNorm

    _relief(ax, sea)
    image = ax.imshow(
        np.where(sea.water, elevation, np.nan) * 100,
        extent=_extent(sea),
        origin="lower",
        cmap="RdBu_r",
        norm=SymLogNorm(linthresh=10, vmin=-100, vmax=100),
        interpolation="bilinear",
        interpolation_stage="rgba",
    )
    _label_map(ax, sea, f"{second / 60:.0f} min")
    return image


def _extent(sea: Sea) -> tuple[float, float, float, float]:
    half_x = (sea.longitude[1] - sea.longitude[0]) / 2
    half_y = (sea.latitude[1] - sea.latitude[0]) / 2
    return (
        float(sea.longitude[0] - half_x),
        float(sea.longitude[-1] + half_x),
        float(sea.latitude[0] - half_y),
        float(sea.latitude[-1] + half_y),
    )


def _relief(ax: Axes, sea: Sea) -> None:
    """Draw land as shaded relief; this also fills the sea, over which the wave is drawn."""
    from matplotlib.colors import LightSource, LinearSegmentedColormap

    earth = LinearSegmentedColormap.from_list(
        "earth", ["#b9b49a", "#cfc6ab", "#b7a98c", "#8f8270", "#e9e6e0"]
    )
    dx, dy = sea.spacing()
    land = np.maximum(sea.topography, 0)
    shaded = LightSource(azdeg=315, altdeg=40).shade(
        land, earth, blend_mode="soft", vert_exag=4, dx=float(dx.mean()), dy=dy, vmin=0, vmax=2000
    )
    ax.imshow(shaded, extent=_extent(sea), origin="lower", interpolation="bilinear")
    ax.contour(
        sea.longitude,
        sea.latitude,
        sea.topography,
        levels=[0],
        colors=INK,
        linewidths=0.6,
        zorder=3,
    )
    ax.contour(
        sea.longitude,
        sea.latitude,
        sea.topography,
        levels=[-1000, -200],
        colors=FAINT,
        linewidths=0.5,
        linestyles="dotted",
        zorder=3,
    )


def _label_map(ax: Axes, sea: Sea, title: str) -> None:
    ax.set_aspect(1 / np.cos(np.radians(float(sea.latitude.mean()))))
    ax.xaxis.set_major_formatter(lambda x, _: f"{abs(x):g}°{'W' if x < 0 else 'E'}")
    ax.yaxis.set_major_formatter(lambda y, _: f"{abs(y):g}°{'S' if y < 0 else 'N'}")
    ax.set_xticks(np.arange(np.ceil(sea.longitude[0]), sea.longitude[-1]))
    ax.set_yticks(np.arange(np.ceil(2 * sea.latitude[0]) / 2, sea.latitude[-1], 0.5))
    ax.tick_params(colors=INK, labelsize=9)
    ax.text(
        0.98,
        0.965,
        title,
        transform=ax.transAxes,
        ha="right",
        va="top",
        fontsize=13,
        weight="bold",
        color=INK,
        bbox={
            "boxstyle": "round,pad=0.3",
            "facecolor": "white",
            "edgecolor": "none",
            "alpha": 0.85,
        },
        zorder=6,
    )


def _mark_gauges(ax: Axes, gauges: Sequence[Gauge], colours: Sequence[str]) -> None:
    for number, (gauge, colour) in enumerate(zip(gauges, colours, strict=True), 1):
        ax.plot(
            gauge.longitude,
            gauge.latitude,
            marker="o",
            markersize=13,
            color=colour,
            markeredgecolor="white",
            markeredgewidth=1.4,
            zorder=5,
        )
        ax.text(
            gauge.longitude,
            gauge.latitude,
            str(number),
            ha="center",
            va="center_baseline",
            fontsize=8.5,
            color="white",
            weight="bold",
            zorder=6,
        )


def _draw_records(
    ax: Axes, seconds: Numbers, gauges: Sequence[Gauge], colours: Sequence[str]
) -> None:
    minutes = seconds / 60
    spread = 100 * max(float(np.ptp(gauge.elevation)) for gauge in gauges) or 1.0
    step = 0.5 * spread
    for number, (gauge, colour) in enumerate(zip(gauges, colours, strict=True), 1):
        base = -step * (number - 1)
        ax.axhline(base, color=FAINT, linewidth=0.6, alpha=0.5)
        ax.plot(minutes, base + 100 * gauge.elevation, color=colour, linewidth=1.6)
        ax.annotate(
            f"{number}  {gauge.name}",
            (1.0, base),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            weight="bold",
            fontsize=10,
        )
    ax.set_xlim(0, float(minutes[-1]))
    ax.set_yticks([])
    ax.set_xlabel("minutes after the start", color=INK)
    ax.set_title(
        "Gauges, read from the point-time-series layout: one chunk holds the whole record",
        loc="left",
        fontsize=11,
        color=INK,
    )
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(colors=INK)
    _scale_bar(ax, spread)


def _scale_bar(ax: Axes, spread: float) -> None:
    """Draw a vertical bar of a round number of centimetres, as the records are offset."""
    size = next(s for s in (200, 100, 50, 20, 10, 5, 2, 1, 0.5, 0.1, 0) if s <= 0.6 * spread)
    top = ax.get_ylim()[1]
    x = 0.012
    transform = ax.get_yaxis_transform()
    ax.plot(
        [x, x],
        [top - size, top],
        transform=transform,
        color=INK,
        linewidth=2.5,
        solid_capstyle="butt",
    )
    ax.text(
        x + 0.008,
        top - size / 2,
        f"{size:g} cm",
        transform=transform,
        va="center",
        color=INK,
        fontsize=10,
    )
