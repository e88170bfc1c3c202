"""Figures are drawn, keep their colours, say their n, and nothing lies on top of anything else."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from analysis.figures import FIGURES, cost_of_safety, latency_throughput, write_all
from analysis.load import Results, load
from analysis.style import known_protocols, looks
from analysis.timeline import latency_over_time, percentile_by_second, recovery_timelines
from tests.analysis.sample_sweep import write_sweep
from tests.analysis.synthetic import write_run


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(write_sweep(tmp_path_factory.mktemp("sweep") / "runs", queries=("q3", "q5"), repetitions=2))


def test_a_protocol_looks_the_same_in_every_company() -> None:
    everyone = {look.name: (look.colour, look.marker) for look in looks(known_protocols())}
    for name in known_protocols():
        (alone,) = looks([name])
        assert (alone.colour, alone.marker) == everyone[name]
    assert [look.name for look in looks(["zebra", "unsafe", "another"])] == ["unsafe", "another", "zebra"]
    assert len(set(everyone.values())) == len(everyone)
    assert not {look.colour for look in looks(["zebra"])} & {colour for colour, _ in everyone.values()}


def test_every_figure_is_written_as_png_and_pdf(sweep: Results, tmp_path: Path) -> None:
    written = write_all(sweep, tmp_path)
    assert set(written) == {*FIGURES, "recovery_q8_20000"}
    for path in written.values():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def drawn(results: Results) -> dict[str, Any]:
    return {name: draw(results) for name, draw in FIGURES.items()} | recovery_timelines(results)


def overlaps(figure: Any) -> list[str]:
    """What lies outside of the figure, and axes (with their labels and titles) or legend that overlap each other."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    whole = figure.bbox
    boxes = {f"axes {number}": one.get_tightbbox(renderer) for number, one in enumerate(figure.axes) if one.axison}
    boxes |= {"legend": figure.legends[0].get_window_extent(renderer), "title": figure._suptitle.get_window_extent()}
    found = [name for name, box in boxes.items()
             if box.x0 < -1 or box.y0 < -1 or box.x1 > whole.x1 + 1 or box.y1 > whole.y1 + 1]  # fmt: skip
    names = list(boxes)
    for place, name in enumerate(names):
        for other in names[place + 1 :]:
            one, two = boxes[name], boxes[other]
            if min(one.x1, two.x1) - max(one.x0, two.x0) > 1 and min(one.y1, two.y1) - max(one.y0, two.y0) > 1:
                found.append(f"{name} on {other}")
    return found


def test_nothing_overlaps_or_is_cut_off_and_n_is_said(sweep: Results) -> None:
    for name, figure in drawn(sweep).items():
        assert overlaps(figure) == [], name
        assert "n = " in figure.legends[0].get_title().get_text(), name
        plt.close(figure)


def test_a_soak_with_faults_everywhere_has_a_title_that_fits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", fault_at_s=5.05)
    summary = json.loads((run / "run.json").read_text())
    (fault,) = summary["faults"]
    roles = [None, *(f"{stage}/{number}" for stage in ("split", "count", "most") for number in range(4))]
    summary["faults"] = [{**fault, "role": role} for role in roles]
    (run / "run.json").write_text(json.dumps(summary))
    results = load(tmp_path)
    assert "the log" in results.frame["fault_role"][0].split(", ")
    (figure,) = recovery_timelines(results).values()
    assert overlaps(figure) == []
    assert figure._suptitle.get_text().endswith(", kill in 13 places")
    plt.close(figure)


def test_the_check_for_overlaps_can_fail() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    left.set_position([0.1, 0.1, 0.6, 0.8])
    right.set_position([0.5, 0.1, 0.6, 0.8])
    figure.suptitle("x")
    figure.legend([left.plot([1])[0]], ["one"], loc="center")
    assert {"axes 0 on axes 1", "axes 1", "axes 0 on legend"} <= set(overlaps(figure))
    plt.close(figure)


def test_invalid_cells_are_hollow_and_said(tmp_path: Path) -> None:
    for rate in (1000, 2000):
        write_run(tmp_path / str(rate), rate=rate, valid=rate == 1000, invalid_reasons=[] if rate == 1000 else ["slow"])
    figure = FIGURES["latency_throughput"](load(tmp_path))
    assert figure is not None
    faces = [line.get_markerfacecolor() for line in figure.axes[0].lines if line.get_marker() not in ("None", "", None)]
    assert "white" in faces
    assert any(face != "white" for face in faces)
    assert "1 cell(s) of invalid runs only" in figure.legends[0].get_title().get_text()
    plt.close(figure)


def test_different_flushes_have_axes_of_their_own(tmp_path: Path) -> None:
    for flush in (10, 100):
        for rate in (1000, 2000):
            for protocol in ("unsafe", "transactions"):
                write_run(tmp_path / f"{protocol}-{flush}-{rate}", protocol=protocol, rate=rate,
                          config={"flush_interval_ms": flush})  # fmt: skip
    results = load(tmp_path)
    for draw in (latency_throughput, cost_of_safety):
        figure = draw(results)
        titles = {axes.get_title() for axes in figure.axes}
        plt.close(figure)
        assert titles == {f"q5, {flush} ms flushes, p{percent}" for flush in (10, 100) for percent in (50, 99)}


def test_without_data_there_is_no_figure(tmp_path: Path) -> None:
    assert write_all(load(tmp_path), tmp_path / "figures") == {}


def test_a_percentile_of_every_second() -> None:
    table = pd.DataFrame(
        [(0, "visible", 1000, 99), (0, "visible", 9000, 1), (1, "visible", 2000, 1), (1, "emit", 7000, 1)],
        columns=["second", "metric", "value_us", "count"],
    )
    assert percentile_by_second(table, "visible", 99).to_dict() == {0: 1.0, 1: 2.0}


def test_a_time_line_without_lag_or_fault(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    assert latency_over_time([path], tmp_path / "latency.png").is_file()
