"use strict";
// Memory over the steps, and the estimated timeline of a device.
const planCharts = (() => {
  const { bytes, number, ink } = page;
  // Beside the colors of phases, those of collectives: the same in the list of steps.
  const PHASES = { forward: page.colors[0], backward: page.colors[2], update: page.colors[4] };
  const COLLECTIVES = {
    all_reduce: page.colors[1], reduce_scatter: page.colors[3], all_gather: page.colors[7], all_to_all: page.colors[5], permute: page.colors[6],
  };
  const KINDS = [page.colors[0], page.colors[4], page.colors[6], page.colors[3], page.colors[2], page.colors[1], page.colors[8], page.colors[5]];
  const dashed = (name) => name.replaceAll("_", "-");
  const paths = (layout, step) => {
    // A blank belongs to a loop; what it is made for is its buffer's.
    const all = step.op === "blank" ? [layout.texts[layout.buffers[step.writes[0][0]][0]]] : [...new Set(step.of.map((o) => layout.texts[o.path]))];
    return step.collective && step.of.length > 1 ? `${step.of.length} values` : all.join(", ") || "(unnamed)";
  };

  const time = (seconds) => {
    const [unit, factor] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e3] : seconds >= 1e-6 ? ["µs", 1e6] : ["ns", 1e9];
    return `${Number((seconds * factor).toPrecision(3)).toLocaleString("en-US")} ${seconds === 0 ? "s" : unit}`;
  };

  const curves = new Map();

  /** Bytes of each kind that a device holds during each step. */
  const curve = (layout, kinds) => {
    if (!curves.has(layout)) curves.set(layout, summed(layout, kinds));
    return curves.get(layout);
  };

  const summed = (layout, kinds) => {
    const count = layout.steps.length;
    const held = kinds.map(() => new Float64Array(count + 1));
    for (const [, , kind, begin, end, size] of layout.buffers) {
      held[kind][begin] += size;
      held[kind][end] -= size;
    }
    held.forEach((all) => all.forEach((_, k) => { if (k > 0) all[k] += all[k - 1]; }));
    const total = Array.from({ length: count }, (_, k) => held.reduce((sum, all) => sum + all[k], 0));
    const peak = total.reduce((best, value, k) => (value > total[best] ? k : best), 0);
    return { held: held.map((all) => Array.from(all.slice(0, count))), total, peak };
  };

  /** What is held during a step, the largest first. */
  const heldAt = (layout, step) => layout.buffers
    .map((row, buffer) => ({ buffer, path: layout.texts[row[0]], type: layout.types[row[1]], kind: row[2], begin: row[3], end: row[4], bytes: row[5] }))
    .filter((b) => b.begin <= step && step < b.end)
    .sort((a, b) => b.bytes - a.bytes || a.path.localeCompare(b.path));

  const unitOf = (most) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const power = Math.min(Math.floor(Math.log2(Math.max(most, 1)) / 10), units.length - 1);
    return [units[power], 1024 ** power];
  };

  const named = (layout, at) => {
    const step = layout.steps[Math.min(at, layout.steps.length - 1)];
    return `step ${at}: ${dashed(step.op)} ${paths(layout, step)}`;
  };

  /** A line through the chart at the step that is selected, and what stands for the peaks. */
  const marks = (state, layout, { total, peak }, size) => {
    const line = (more) => ({ symbol: "none", silent: true, ...more });
    const data = [{ xAxis: peak, lineStyle: { color: ink("bad"), type: "dashed" },
      label: { formatter: `peak ${bytes(total[peak])}`, color: ink("bad"), position: "end", align: peak > layout.steps.length / 2 ? "right" : "left" } }];
    if (state.selected !== undefined) data.push({ xAxis: state.selected, lineStyle: { color: ink("ink"), type: "solid" }, label: { show: false } });
    const other = state.other();
    if (other) data.push({ yAxis: other.per_device.peak_bytes / size, lineStyle: { color: ink("faint"), type: "dotted" },
      label: { formatter: `peak of ${other.name}: ${bytes(other.per_device.peak_bytes)}`, color: ink("ink"), backgroundColor: ink("paper"),
        padding: [4, 6], borderRadius: 3, distance: [8, 5], position: "insideStartTop" } });
    return { id: "marks", type: "line", data: [], symbol: "none", silent: true, tooltip: { show: false }, markLine: line({ data }) };
  };

  /** The marks of the charts again, after another step is selected: all else stays as it is drawn. */
  const marksOf = (option) => ({ series: option.series.filter((s) => s.id === "marks") });

  /** An axis from 0 to a round number that is not less; zooming would otherwise give ticks that touch. */
  const upTo = (most) => {
    const power = 10 ** Math.floor(Math.log10(Math.max(most, 1e-9) / 4));
    const interval = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n * 4 >= most);
    return { min: 0, max: Math.ceil((most * 1.02) / interval) * interval, interval };
  };

  const memory = (state, kinds) => () => {
    const layout = state.layout();
    const found = curve(layout, kinds);
    const [unit, size] = unitOf(found.total[found.peak]);
    const areas = kinds.flatMap((name, k) => (found.held[k].some((v) => v > 0) ? [{ name, type: "line", stack: "memory", step: "middle", symbol: "none",
      lineStyle: { width: 0 }, areaStyle: { opacity: 0.85 }, color: KINDS[k], emphasis: { disabled: true },
      data: found.held[k].map((v, at) => [at, v / size]) }] : []));
    const told = (all) => {
      const at = all[0].value[0];
      const sum = all.reduce((n, p) => n + p.value[1], 0);
      const row = (p) => `${p.marker}${echarts.format.encodeHTML(p.seriesName)}: ${bytes(Math.round(p.value[1] * size))}`;
      const rows = [...all].reverse().filter((p) => p.value[1] > 0).map(row);
      return [echarts.format.encodeHTML(named(layout, at)), `<b>${bytes(Math.round(sum * size))}</b>`, ...rows].join("<br>");
    };
    const other = state.other();
    const most = Math.max(found.total[found.peak], other?.per_device.peak_bytes ?? 0) / size;
    return {
      grid: { left: 64, right: 24, top: 30, bottom: 48 },
      tooltip: { trigger: "axis", formatter: told, order: "seriesDesc" },
      // A step is as wide as 1 around its number, so that what is nearest to the pointer is what is below it.
      xAxis: { type: "value", min: -0.5, max: layout.steps.length - 0.5, name: "step of the plan", minInterval: 1,
        axisLabel: { showMinLabel: false, showMaxLabel: false, color: ink("faint") } },
      yAxis: { type: "value", name: `${unit} on a device`, nameGap: 44, axisLine: { onZero: false, lineStyle: { color: ink("line") } }, ...upTo(most) },
      series: [...areas, marks(state, layout, found, size)],
    };
  };

  /** The timeline of the estimate: bars, and the end of what is drawn. */
  const estimated = ({ estimate: e }) => {
    const bars = e.bars.map(([at, lane, start, end]) => ({ at, lane, start, end }));
    return { bars, drawn: e.left_out ? bars.reduce((last, b) => Math.max(last, b.end), 0) : e.seconds };
  };

  const rectangle = (params, api, lane, look) => {
    const [from, to] = [api.coord([api.value(0), lane]), api.coord([api.value(1), lane])];
    const high = api.size([0, 1])[1] * 0.7;
    const shape = echarts.graphic.clipRectByRect({ x: from[0], y: from[1] - high / 2, width: Math.max(to[0] - from[0], 1), height: high }, params.coordSys);
    return shape && { type: "rect", shape, style: look, emphasis: { style: { stroke: ink("ink"), lineWidth: 1 } } };
  };

  const lanes = (layout, ran) => {
    const groups = new Map();
    for (const bar of ran.bars) {
      const step = layout.steps[bar.at];
      const name = step.collective ? dashed(step.op) : step.phase;
      const color = step.collective ? COLLECTIVES[step.op] : PHASES[step.phase];
      if (!groups.has(name)) groups.set(name, { name, color, lane: bar.lane, data: [] });
      groups.get(name).data.push(bar);
    }
    return [...groups.values()];
  };

  const told = (layout, bar) => {
    const step = layout.steps[bar.at];
    const c = step.collective;
    const work = c
      ? `${bytes(c.bytes.reduce((a, b) => a + b, 0))} over ${c.axes.map((a) => layout.mesh[a][0]).join(", ")}`
      : step.flops ? `${number(step.flops)} FLOP` : "";
    const times = step.times > 1 ? `${number(step.times)} times in a step` : "";
    const ends = c && c.wait !== bar.at ? `starts at step ${bar.at}, waited for at step ${c.wait}` : "";
    const lag = step.lag ? `${step.lag} turn${step.lag === 1 ? "" : "s"} of the loop behind what runs ahead` : "";
    const parts = [named(layout, bar.at), `about ${time(bar.end - bar.start)}, from ${time(bar.start)}`, work, times, ends, lag];
    return parts.filter(Boolean).map(echarts.format.encodeHTML).join("<br>");
  };

  const timeline = (state) => () => {
    const layout = state.layout();
    const ran = state.ran();
    const [unit, factor] = ran.drawn >= 1 ? ["s", 1] : ran.drawn >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
    const selected = ran.bars.find((b) => b.at === state.selected);
    const series = lanes(layout, ran).map((group) => ({
      name: group.name, type: "custom", color: group.color, encode: { x: [0, 1], y: 2 },
      data: group.data.map((b) => [b.start * factor, b.end * factor, b.lane, b.at]),
      renderItem: (params, api) => rectangle(params, api, group.lane, { fill: group.color, stroke: ink("paper"), lineWidth: 0.4 }),
      tooltip: { formatter: (p) => told(layout, group.data[p.dataIndex]) },
    }));
    const mark = { id: "marks", type: "line", data: [], silent: true, markLine: { symbol: "none", silent: true, label: { show: false },
      data: selected ? [{ xAxis: selected.start * factor, lineStyle: { color: ink("ink"), type: "solid" } }] : [] } };
    return {
      grid: { left: 86, right: 24, top: 12, bottom: 48 },
      tooltip: { trigger: "item" },
      xAxis: { type: "value", min: 0, max: ran.drawn * factor, name: `estimated time in ${unit}`,
        axisLabel: { showMaxLabel: false, color: ink("faint") } },
      yAxis: { type: "category", data: ["compute", "collectives"], inverse: true, splitLine: { show: false } },
      series: [...series, mark],
    };
  };

  return { memory, timeline, marksOf, estimated, curve, heldAt, time, dashed, paths, COLLECTIVES, KINDS };
})();
