"""Kinds of panels of the dashboards, made with Grafana's builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as commons
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmaps
from grafana_foundation_sdk.models import prometheus as queries

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

# Okabe and Ito's palette, which people with colour vision deficiencies can tell apart.
GREEN, YELLOW, RED, BLUE, GREY = "#009E73", "#E69F00", "#D55E00", "#0072B2", "#999999"

Steps = Sequence[tuple[float | None, str]]
PLAIN: Steps = ((None, BLUE),)


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    held = [models.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(held)


def _color(mode: models.FieldColorModeId) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(mode)


def _query(expr: str, legend: str = "", ref: str = "A", exemplar: bool = False) -> prometheus.Dataquery:
    asked = prometheus.Dataquery().expr(expr).legend_format(legend or "__auto").ref_id(ref).datasource(SOURCE)
    return asked.range().exemplar(True) if exemplar else asked.range()


def _now(expr: str, ref: str = "A") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).ref_id(ref).instant().datasource(SOURCE)


def number(
    title: str, description: str, expr: str, unit: str = "short", steps: Steps = PLAIN, none: str = "none", **more: Any
) -> stat.Panel:
    """Return a panel with one current figure, coloured by thresholds."""
    panel = stat.Panel().title(title).description(description).datasource(SOURCE).with_target(_now(expr))
    panel = panel.unit(unit).no_value(none).height(4).span(more.pop("span", 3)).thresholds(_thresholds(steps))
    if (decimals := more.pop("decimals", None)) is not None:
        panel = panel.decimals(decimals)
    panel = panel.color_scheme(_color(models.FieldColorModeId.THRESHOLDS)).graph_mode(commons.BigValueGraphMode.NONE)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))


def lines(
    title: str, description: str, exprs: Mapping[str, str], unit: str = "short", **more: Any
) -> timeseries.Panel:
    """Return a panel with curves over time: legend -> query.

    Options: ``stacked``, ``exemplar``, ``limit`` (a line at this value), ``span``.
    """
    panel = timeseries.Panel().title(title).description(description).datasource(SOURCE).unit(unit)
    panel = panel.height(8).span(more.get("span", 8)).min(0).line_width(1).fill_opacity(20 if more.get("stacked") else 5)
    panel = panel.show_points(commons.VisibilityMode.NEVER).span_nulls(False)
    panel = panel.color_scheme(_color(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    legend = common.VizLegendOptions().show_legend(True).placement(commons.LegendPlacement.BOTTOM)
    panel = panel.legend(legend.display_mode(commons.LegendDisplayMode.LIST).calcs([]))
    tip = common.VizTooltipOptions().mode(commons.TooltipDisplayMode.MULTI).sort(commons.SortOrder.DESCENDING)
    panel = panel.tooltip(tip)
    if more.get("stacked"):
        panel = panel.stacking(common.StackingConfig().mode(commons.StackingMode.NORMAL).group("A"))
    if (limit := more.get("limit")) is not None:
        panel = panel.thresholds(_thresholds(((None, "transparent"), (limit, RED))))
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(commons.GraphThresholdsStyleMode.DASHED))
    for ref, (name, expr) in zip("ABCDEFGH", exprs.items(), strict=False):
        panel = panel.with_target(_query(expr, name, ref, exemplar=bool(more.get("exemplar"))))
    return panel


def warmth(title: str, description: str, expr: str, unit: str = "s", span: int = 8) -> heatmap.Panel:
    """Return a heat map of a histogram over time: the buckets of ``expr``, one column a step."""
    asked = _query(expr, "{{le}}").format(queries.PromQueryFormat.HEATMAP)
    panel = heatmap.Panel().title(title).description(description).datasource(SOURCE).with_target(asked)
    colors = heatmap.HeatmapColorOptions().mode(heatmaps.HeatmapColorMode.SCHEME).scheme("Viridis").steps(64)
    panel = panel.height(8).span(span).calculate(False).color(colors)
    return panel.y_axis(heatmap.YAxisConfig().unit(unit)).show_legend().cell_gap(1)


def states(
    title: str, description: str, expr: str, legend: str, names: Mapping[int, tuple[str, str]], span: int = 12
) -> statetimeline.Panel:
    """Return a panel with the state of each subject over time. ``names``: value -> (name, colour)."""
    panel = statetimeline.Panel().title(title).description(description).datasource(SOURCE)
    panel = panel.with_target(_query(expr, legend)).height(8).span(span).merge_values(True)
    options = {
        str(value): models.ValueMappingResult(text=name, color=color, index=value)
        for value, (name, color) in names.items()
    }
    panel = panel.mappings([models.ValueMap(options=options)]).color_scheme(_color(models.FieldColorModeId.THRESHOLDS))
    return panel.thresholds(_thresholds(((None, GREY),))).show_value(commons.VisibilityMode.AUTO).row_height(0.8)


def rows(
    title: str, description: str, columns: Mapping[str, tuple[str, str]], first: Mapping[str, str], span: int = 24
) -> table.Panel:
    """Return a table. ``columns``: heading -> (query, unit); one row for each value of the labels in ``first`` (label
    -> heading).
    """
    panel = table.Panel().title(title).description(description).datasource(SOURCE).height(8).span(span)
    renamed = dict(first)
    for ref, (name, (expr, unit)) in zip("ABCDEFGH", columns.items(), strict=False):
        panel = panel.with_target(_now(expr, ref).format(queries.PromQueryFormat.TABLE))
        panel = panel.override_by_name(name, [models.DynamicConfigValue(id_val="unit", value=unit)])
        renamed[f"Value #{ref}"] = name
    panel = panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    order = {name: place for place, name in enumerate(renamed)}
    options = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": renamed}
    return panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=options))


def chosen(name: str, label: str, query: str, description: str) -> dashboard.QueryVariable:
    """Return a variable with the values of a label; all at first, including series without the label."""
    variable = dashboard.QueryVariable(name).label(label).description(description).datasource(SOURCE)
    variable = variable.query({"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": 5})
    variable = variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_ASC)
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return variable.multi(True).include_all(True).all_value(".*").current(everything)


def board(title: str, uid: str, description: str, variables: Sequence[Any], parts: Mapping[str, Sequence[Any]]) -> Any:
    """Return a dashboard: rows of panels under their headings."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags(["cortex"]).timezone("browser")
    made = made.editable().refresh("30s").time("now-1h", "now").tooltip(models.DashboardCursorSync.CROSSHAIR)
    made = made.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for variable in variables:
        made = made.with_variable(variable)
    link = dashboard.DashboardLink("Cortex").type(models.DashboardLinkType.DASHBOARDS).tags(["cortex"])
    made = made.link(link.as_dropdown(False).include_vars(True).keep_time(True).target_blank(False))
    for heading, panels in parts.items():
        made = made.with_row(dashboard.Row(heading))
        for panel in panels:
            made = made.with_panel(panel)
    built = made.build()
    for number_, panel in enumerate(built.panels or (), 1):
        panel.id_val = number_
    return built
