"use strict";
// What many runs took of machines: how they ended, device hours by model, wall times, and the table of runs.
(() => {
  const { data, section, chart, table, element, number } = page;
  const { runs, ends, models, all } = data;

  /** Seconds in the unit in which they are read. */
  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "n/a";
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const [size, name] = units.find((unit) => seconds >= unit[0]) ?? [0.001, "ms"];
    return `${Number((seconds / size).toPrecision(3))} ${name}`;
  };
  const percent = (share) => {
    if (share === null || share === undefined) return "n/a";
    return `${(share * 100).toFixed(share === 0 || share >= 0.01 ? 1 : 3)} %`;
  };
  const hours = (value) => (value === null || value === undefined ? "n/a" : duration(value * 3600).replace(/^0 ms$/, "0"));
  const stateColors = { finished: 2, failed: 7, interrupted: 5, running: 0, imported: 8 };
  const stateColor = (name) => page.colors[stateColors[name.split(":")[0]] ?? 8];

  /** A long name in lines of the width that a chart has for it. */
  const folded = (name, most) => name.split(" ").reduce((lines, word) => {
    const last = lines[lines.length - 1];
    if (last !== undefined && `${last} ${word}`.length <= most) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
    return lines;
  }, []).join("\n");

  const narrow = () => innerWidth < 600;

  const summary = () => {
    const facts = [
      ["runs", number(all.runs)],
      ["ended by an error", `${number(all.failed)} (${percent(all.runs ? all.failed / all.runs : null)})`],
      ["wall time", duration(all.wall)],
      ["in queues", duration(all.queue)],
      ["device time", hours(all.hours)],
      ["utilization (MFU)", percent(all.mfu)],
      ["waiting share", percent(all.waiting)],
    ];
    const place = section("In all");
    const list = element("dl", { class: "facts" });
    for (const [name, value] of facts) list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
    place.append(list);
  };

  /** Room for the longest line of the names. */
  const margin = (names) => {
    const lines = names.flatMap((name) => folded(name, narrow() ? 16 : 30).split("\n"));
    return 20 + Math.ceil(6.4 * Math.max(...lines.map((line) => line.length)));
  };

  /** Horizontal bars, the longest on top. */
  const bars = ({ names, series, unit, show }) => () => ({
    grid: { left: margin(names), right: 44, top: 8, bottom: 44 },
    tooltip: { trigger: "item", valueFormatter: show },
    xAxis: { type: "value", name: unit, minInterval: unit === "runs" ? 1 : undefined, splitNumber: narrow() ? 3 : 5 },
    yAxis: { type: "category", data: names, inverse: true, axisTick: { show: false },
      axisLabel: { color: page.ink("ink"), lineHeight: 15, formatter: (name) => page.drawable(folded(name, narrow() ? 16 : 30)) } },
    series: series(),
  });

  // Two charts stand beside each other.
  const height = 90 + (narrow() ? 62 : 44) * Math.max(ends.length, models.length);

  const endChart = (parent) => chart(parent, {
    id: "ends", title: "Runs by state and cause", about: "those that failed by the code of their error", zoom: "", legend: false, height,
    option: bars({
      names: ends.map((end) => end.name), unit: "runs", show: number,
      series: () => [{ name: "runs", type: "bar", barMaxWidth: 24, label: { show: true, position: "right", color: page.ink("faint") },
        data: ends.map((end) => ({ value: end.runs, itemStyle: { color: stateColor(end.name) } })) }],
    }),
  });

  const modelChart = (parent) => {
    const states = [...new Set(runs.map((run) => run.state))].sort();
    const sum = (model, state) => runs.filter((run) => run.model === model && run.state === state)
      .reduce((total, run) => total + (run.hours ?? 0), 0);
    const sorted = models.filter((model) => model.hours > 0).sort((a, b) => b.hours - a.hours);
    if (!sorted.length) return;
    // Short runs are told in seconds, long ones in hours.
    const [unit, factor] = sorted[0].hours >= 1 ? ["device hours", 1] : sorted[0].hours >= 1 / 60 ? ["device minutes", 60] : ["device seconds", 3600];
    chart(parent, {
      id: "models", title: "Device time by model", about: "wall time times devices", zoom: "", height,
      option: bars({
        names: sorted.map((model) => model.name), unit, show: (value) => `${number(value)} ${unit}`,
        series: () => states.map((state) => ({ name: state, type: "bar", stack: "all", barMaxWidth: 24, itemStyle: { color: stateColor(state) },
          data: sorted.map((model) => sum(model.name, state) * factor) })),
      }),
    });
  };

  /** Bins of a width that is even in the logarithm: runs of seconds and of days are in one chart. */
  const bins = (walls) => {
    const [low, high] = [Math.min(...walls), Math.max(...walls)].map(Math.log);
    const count = Math.max(1, Math.min(16, Math.ceil(Math.sqrt(walls.length)) + 1));
    const width = (high - low) / count || 1;
    const edge = (at) => Math.exp(low + at * width);
    const place = (wall) => Math.min(count - 1, Math.floor((Math.log(wall) - low) / width));
    return high > low
      ? Array.from({ length: count }, (_, at) => ({ from: edge(at), to: edge(at + 1), of: (wall) => place(wall) === at }))
      : [{ from: walls[0], to: walls[0], of: () => true }];
  };

  const wallChart = (parent) => {
    const timed = runs.filter((run) => run.wall > 0);
    if (!timed.length) return;
    const found = bins(timed.map((run) => run.wall));
    const states = [...new Set(timed.map((run) => run.state))].sort();
    chart(parent, {
      id: "walls", title: "Wall time of runs", about: "bins are even in the logarithm", zoom: "", height: 320,
      option: () => ({
        grid: { left: 56, right: 24, top: 16, bottom: 64 },
        tooltip: { trigger: "axis", axisPointer: { type: "shadow" },
          formatter: (shown) => [`${duration(found[shown[0].dataIndex].from)} to ${duration(found[shown[0].dataIndex].to)}`,
            ...shown.filter((s) => s.value > 0).map((s) => `${s.marker}${s.seriesName}: ${s.value}`)].join("<br>") },
        xAxis: { type: "category", data: found.map((bin) => duration(bin.from)), name: "wall time, from", nameGap: 36,
          axisLabel: { color: page.ink("faint"), hideOverlap: true } },
        yAxis: { type: "value", name: "runs", minInterval: 1, nameGap: 34 },
        series: states.map((state) => ({ name: state, type: "bar", stack: "all", barCategoryGap: "8%", itemStyle: { color: stateColor(state) },
          data: found.map((bin) => timed.filter((run) => run.state === state && bin.of(run.wall)).length) })),
      }),
    });
  };

  const groupTable = () => {
    const place = section("By model");
    table(place, {
      id: "models",
      columns: [
        { name: "model", title: "model", text: true }, { name: "runs", title: "runs" }, { name: "failed", title: "failed" },
        { name: "devices", title: "devices" }, { name: "wall_seconds", title: "wall time", show: duration },
        { name: "queue_seconds", title: "in queues", show: duration }, { name: "device_hours", title: "device time", show: hours },
        { name: "mfu", title: "MFU", show: percent }, { name: "waiting", title: "waiting", show: percent },
      ],
      rows: models.map((m) => [m.name, m.runs, m.failed, m.devices.join(", "), m.wall, m.queue, m.hours, m.mfu, m.waiting]),
    });
  };

  const runTable = () => {
    const place = section("Runs");
    const time = (text) => (text ? text.slice(0, 16).replace("T", " ") : "n/a");
    const said = (get) => runs.some((run) => get(run) !== null && get(run) !== undefined);
    const columns = [
      [{ name: "run", title: "run", text: true }, (r) => r.name],
      [{ name: "state", title: "state", text: true,
        show: (state) => element("span", { class: state === "failed" ? "bad" : "" }, state) }, (r) => r.state],
      [{ name: "model", title: "model", text: true }, (r) => r.model],
      [{ name: "layout", title: "layout", text: true }, (r) => r.layout],
      [{ name: "devices", title: "devices" }, (r) => r.devices],
      [{ name: "started", title: "started (UTC)", text: true, show: time }, (r) => r.started],
      [{ name: "wall_seconds", title: "wall time", show: duration }, (r) => r.wall],
      [{ name: "queue_seconds", title: "in queue", show: duration }, (r) => r.queue],
      [{ name: "device_hours", title: "device time", show: hours }, (r) => r.hours],
      [{ name: "mfu", title: "MFU", show: percent }, (r) => r.mfu],
      [{ name: "waiting", title: "waiting", show: percent }, (r) => r.waiting],
      [{ name: "cause", title: "cause", text: true }, (r) => r.cause],
    ].filter(([, get]) => said(get));
    table(place, {
      id: "runs",
      columns: columns.map(([column]) => column),
      rows: runs.map((run) => columns.map(([, get]) => get(run))),
    });
  };

  summary();
  const place = element("div", { class: "charts" });
  section("How they ended, and what they took").append(place);
  if (ends.length) endChart(place);
  modelChart(place);
  wallChart(place);
  groupTable();
  runTable();
})();
