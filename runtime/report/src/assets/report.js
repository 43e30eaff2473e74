"use strict";
// Draws runs: their table, and charts of those that pass its filter.
(() => {
  const { element, section, chart, table, tip, number, bytes, colors } = page;
  let data = page.data;
  /** Which runs pass the filter, by their place. */
  let passing = new Set(data.runs.keys());
  const shown = () => data.runs.filter((_, at) => passing.has(at));
  const filterText = () => document.querySelector(".filter input").value.trim();

  // What runs are made with.

  /** What a thing has under a name that users chose: such names may be those of what every object has. */
  const own = (of, name) => (of && Object.hasOwn(of, name) ? of[name] : undefined);

  // Sizes alone, as `2x2`, or with the names of the axes.
  const meshOf = (run) => (run.mesh ?? "").split(run.mesh?.includes("=") ? "," : /[,x]/).map((axis) => axis.split("=").pop().trim()).join("×");
  const layoutOf = (run) => {
    if (!run.layout && !run.mesh) return "one device";
    return run.layout ? `${run.layout} on ${meshOf(run) || "one device"}` : `replicated on ${meshOf(run)}`;
  };
  const batchOf = (run) => run.batch;
  /** All that tells runs apart but their seed, in words. */
  const traits = (run) => {
    const named = Object.entries({ ...run.dims, ...run.sets }).filter(([name]) => name !== "batch").map(([name, v]) => [name, `${name} ${number(v)}`]);
    const all = [["model", run.model], ["preset", run.preset], ["precision", run.precision], ["batch", `batch ${batchOf(run) ?? "?"}`],
      ["layout", layoutOf(run)], ["examples", run.data && `${number(run.data)} examples`], ...named];
    return new Map(all.filter(([, value]) => value !== undefined && value !== null));
  };
  const natural = (a, b) => a.localeCompare(b, "en", { numeric: true });

  /** The traits of which there are several: lines are called by these. */
  let varying = [];
  const findVarying = () => {
    const found = new Map();
    const drawn = data.runs.filter((run) => run.epochs);
    for (const run of drawn) for (const name of traits(run).keys()) found.set(name, new Set());
    for (const run of drawn) for (const [name, values] of found) values.add(traits(run).get(name));
    varying = [...found].filter(([, values]) => values.size > 1).map(([name]) => name);
  };
  const label = (run, but = []) => {
    const of = traits(run);
    const words = varying.filter((name) => !but.includes(name)).map((name) => of.get(name)).filter(Boolean);
    return words.length > 0 ? words.join(", ") : "all runs";
  };
  /** Runs by a label, in the order of labels. */
  const grouped = (runs, of) => {
    const groups = new Map();
    for (const run of runs) {
      const name = of(run);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(run);
    }
    return new Map([...groups].sort(([a], [b]) => natural(a, b)));
  };
  /** Colors of labels: those of all runs have a place, so that a filter changes no color. */
  const palette = (of) => {
    const names = [...new Set(data.runs.filter((run) => run.epochs).map(of))].sort(natural);
    return (name) => hueOf(names.indexOf(name), names.length);
  };
  /** Of so many colors one: where there are more than are told apart well, hues that are even apart. */
  const hueOf = (at, count) =>
    (count <= colors.length ? colors[at] : `hsl(${Math.round(215 + (at / count) * 330) % 360}, 55%, ${page.dark() ? 62 : 46}%)`);

  // Lines with their spread.

  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
  /** [x, mean, least, greatest, how many] of pairs of x and value. Where a run diverged it has no number, and is not counted. */
  const spread = (pairs) => {
    const by = new Map();
    for (const [x, y] of pairs) {
      if (y === null || y === undefined) continue;
      if (!by.has(x)) by.set(x, []);
      by.get(x).push(y);
    }
    return [...by].sort(([a], [b]) => a - b).map(([x, ys]) => [x, mean(ys), Math.min(...ys), Math.max(...ys), ys.length]);
  };

  /** Between two points, from least to greatest. */
  const band = (name, color, points) => ({
    type: "custom", name, silent: true, z: 1, clip: true, itemStyle: { color }, tooltip: { show: false },
    encode: { x: 0, y: [1, 2] },
    data: points.map(([x, , low, high]) => [x, low, high]),
    renderItem: (params, api) => {
      const [here, next] = [points[params.dataIndex], points[params.dataIndex + 1]];
      if (!next) return null;
      const corners = [api.coord([here[0], here[2]]), api.coord([next[0], next[2]]), api.coord([next[0], next[3]]), api.coord([here[0], here[3]])];
      return { type: "polygon", shape: { points: corners }, style: { fill: color, opacity: 0.18 } };
    },
  });

  const line = (name, color, points, more = {}) => ({
    type: "line", name, data: points.map(([x, y]) => [x, y]), z: 3, symbol: "circle", symbolSize: 5, showSymbol: points.length <= 40,
    lineStyle: { width: 2, color }, itemStyle: { color }, emphasis: { disabled: true }, ...more,
  });

  const withSpread = ([name, color, points], more) => [
    line(name, color, points, more), ...(points.some(([, , low, high]) => high > low) ? [band(name, color, points)] : [])];
  // Of lines that lie on each other each is seen through the gaps of the next.
  const DASHES = ["solid", [14, 10], [8, 8], [3, 7]];
  const dashed = (l, at) => withSpread(l, { lineStyle: { width: 2, color: l[1], type: DASHES[at % DASHES.length] } });

  const value = (point, unit = number) =>
    (point[4] > 1 && point[3] > point[2] ? `${unit(point[1])} (${unit(point[2])} to ${unit(point[3])})` : unit(point[1]));
  /** Of how many of its runs a point of a line is, where these are not all: the others diverged, or are not there yet. */
  const part = (count, of) => (of === undefined || count === of.count ? "" : `${count} of ${of.count} ${of.what}`);
  const whole = (runs) => ({ count: runs.length, what: new Set(runs.map((run) => run.seed)).size === runs.length ? "seeds" : "runs" });

  /** A tip for all lines at an x: each a name, a color, points, and what there is of runs. */
  const lineTip = (lines, heading, unit) => ({
    trigger: "axis",
    formatter: (params) => {
      const x = Number(params[0].axisValue);
      const visible = new Set(params.map((p) => p.seriesName));
      const at = lines.filter(([name]) => visible.has(name)).map(([name, color, points, of]) => [name, color, points.find((p) => p[0] === x), of]);
      const rows = at.filter(([, , point]) => point).sort((a, b) => b[2][1] - a[2][1]);
      const said = (point, of) => [value(point, unit), part(point[4], of)].filter(Boolean).join(", ");
      return tip(heading(x), rows.map(([name, color, point, of]) => [color, name, said(point, of)]));
    },
  });

  const axis = (name, more = {}) => ({ type: "value", name, ...more });
  const valueAxis = (made, unit = number, more = {}) => ({
    type: made.log ? "log" : "value", scale: true, ...more, axisLabel: { formatter: (v) => unit(v), color: page.ink("faint") },
  });
  // Labels and names of the axes have the room that they need.
  const GRID = { left: 8, right: 20, top: 14, bottom: 8, outerBoundsMode: "same", outerBoundsContain: "all" };
  const chartOf = (lines, made, xAxis, { name, unit, heading, series, scale = true, drawn = (l) => withSpread(l) } = {}) => (lines.length === 0 ? null : {
    grid: GRID, xAxis, yAxis: valueAxis(made, unit, { name, scale }), tooltip: lineTip(lines, heading, unit), series: series ?? lines.flatMap(drawn),
  });

  // Curves by epoch.

  const setsOf = () => {
    const sets = new Map();
    const all = data.runs.flatMap((run) => Object.entries(run.epochs?.sets ?? {}));
    for (const [set, metrics] of all) {
      if (!sets.has(set)) sets.set(set, new Set());
      Object.keys(metrics).forEach((name) => sets.get(set).add(name));
    }
    return sets;
  };
  /** Which way is better, of what has a way. */
  const wayOf = (metric) => ({ min: " (less is better)", max: " (more is better)" })[metric === "loss" ? "min" : own(data.better, metric)] ?? "";

  /** [metric, set]: metrics before the loss, and what was evaluated before what was trained on. */
  const measured = () => {
    const sets = [...setsOf()].sort(([a], [b]) => (a === "train") - (b === "train") || natural(a, b));
    const names = [...new Set(sets.flatMap(([, metrics]) => [...metrics]))].sort((a, b) => (a === "loss") - (b === "loss"));
    return names.flatMap((name) => sets.filter(([, metrics]) => metrics.has(name)).map(([set]) => [name, set]));
  };
  const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);

  /** Of each group of runs that have it: a name, a color, the points of its line, and what there is of runs. */
  const epochGroups = (runs, of, set, metric) => {
    const color = palette(of);
    const values = (run) => own(own(run.epochs?.sets, set), metric);
    const pairs = (run) => values(run).map((y, at) => [run.epochs.at[at], y]);
    return [...grouped(runs.filter(values), of)].map(([name, some]) => [name, color(name), spread(some.flatMap(pairs)), whole(some)]);
  };
  /** Lines that are not of all of their runs, in words. */
  const thinnedOut = (groups) => {
    const least = groups.map(([name, , points, of]) => [name, points.length > 0 ? Math.min(...points.map((p) => p[4])) : 0, of]);
    const some = least.filter(([, count, of]) => count < of.count).map(([name, count, of]) => `${name} (${part(count, of)})`);
    if (some.length === 0) return "";
    const told = some.length > 3 ? `${some.slice(0, 3).join(", ")} and ${some.length - 3} more` : some.join(", ");
    return `In parts of fewer runs than there are, since some diverged or went no further: ${told}.`;
  };

  /** A choice of some values of a trait; `""` is all of them. What is chosen stays while there is such a value. */
  const choice = (parent, text, values, first, changed, least = 3) => {
    const select = element("select", { onchange: () => changed() });
    const label = element("label", { hidden: "" }, text, select);
    parent.append(label);
    const update = () => {
      const now = values();
      const before = label.hidden ? undefined : select.value;
      select.replaceChildren(...now.map(([v, title]) => element("option", { value: v }, title)));
      select.value = now.some(([v]) => v === before) ? before : first(now);
      label.hidden = now.length < least;
    };
    update();
    return { value: () => (label.hidden ? "" : select.value), says: () => (label.hidden ? "" : `${text}: ${select.selectedOptions[0].text}`), update };
  };
  const valuesOf = (trait, all) => () => {
    const values = [...new Set(data.runs.filter((run) => run.epochs).map((run) => traits(run).get(trait)).filter(Boolean))].sort(natural);
    return [["", all], ...values.map((v) => [v, v])];
  };
  const only = (runs, trait, picked) => (picked === "" ? runs : runs.filter((run) => traits(run).get(trait) === picked));

  /** Sections add their charts again when there are new ones. */
  const sections = [];
  const sectionOf = (title, about, wanted) => {
    const place = section(title);
    const words = element("p", { class: "about" });
    const choices = element("div", { class: "choices" });
    const grid = element("div", { class: "charts" });
    place.append(words, choices, grid);
    const made = { place, grid, choices, charts: [], picks: [] };
    // A file says what it shows: of which runs, chosen by what.
    const says = (more) => {
      const context = [data.title, title, ...made.picks.map((pick) => pick.says()), filterText() && `filter: ${filterText()}`];
      return [context.filter(Boolean).join(" · "), more].filter(Boolean).join("\n");
    };
    const redraw = () => made.charts.forEach((c) => c.draw());
    made.pick = (text, values, first, least) => { const picked = choice(choices, text, values, first, redraw, least); made.picks.push(picked); return picked; };
    const list = wanted(made);
    made.refresh = () => {
      words.textContent = about();
      words.hidden = words.textContent === "";
      const added = list().filter((given) => !page.charts.has(given.id));
      const more = (given) => ({ lazy: true, drawn: () => made.settle(), says: () => says(given.note?.()) });
      added.forEach((given) => made.charts.push(chart(grid, { ...given, ...more(given) })));
      made.settle();
    };
    made.settle = () => {
      place.hidden = made.charts.every((c) => c.figure.hidden);
      choices.hidden = made.picks.length === 0 || [...choices.children].every((c) => c.hidden);
    };
    sections.push(made);
    made.refresh();
    return made;
  };

  const id = (...words) => words.join("-").replace(/[^\w-]/g, "_");
  const epochAxis = () => axis("epoch", { min: "dataMin", max: "dataMax", minInterval: 1 });
  const bySection = (kind, title, about, { others, trait, pick, all, first, holds, drawn }) => sectionOf(title, about, (made) => {
    const picked = made.pick(pick, valuesOf(trait, all), first);
    const of = (run) => label(run, others);
    const curve = (metric, set) => {
      const groups = () => epochGroups(only(shown(), trait, picked.value()), of, set, metric);
      const note = () => thinnedOut(groups());
      const option = (c) => chartOf(groups().filter(([, , points]) => points.length > 0), c, epochAxis(),
        { name: metric, heading: (x) => `epoch ${x}`, drawn });
      return { id: id(kind, set, metric), title: `${upper(set)} ${metric} by epoch${wayOf(metric)}`, log: true, about: note, note, option };
    };
    return () => (holds() ? measured() : []).map(([metric, set]) => curve(metric, set));
  });
  const several = (name) => varying.includes(name);
  const middle = (values) => values[Math.floor(values.length / 2)][0];

  const curves = () => {
    const band = "its band reaches from the least to the greatest.";
    const every = () => (data.every > 1 ? ` One epoch in ${data.every} is drawn.` : "");
    bySection("batch", "Curves by batch size", () => `A line is the mean over seeds, and over layouts where all are shown; ${band}${every()}`, {
      others: ["layout"], trait: "layout", pick: "Layout", all: "all layouts", first: () => "", holds: () => several("batch") || !several("layout"),
    });
    bySection("layout", "Curves by layout", () => `A line is the mean over seeds; ${band} Layouts that compute the same lie on each other.${every()}`, {
      others: ["batch"], trait: "batch", pick: "Batch size", all: "all batch sizes", first: middle, holds: () => several("layout"), drawn: dashed,
    });
  };

  // Losses by step.

  const stepSection = () => sectionOf("Loss by step", () => "", (made) => {
    const by = [["", "each combination"], ["batch", "batch size"], ["layout", "layout"], ["seed", "seed"], ["run", "run"]];
    const drawn = () => data.runs.filter((r) => r.epochs);
    const few = () => grouped(drawn(), (run) => label(run)).size <= 12;
    const seeds = () => new Set(drawn().map((run) => run.seed)).size;
    // Where nothing else tells runs apart, their seeds do, or their names.
    const alike = () => (seeds() === drawn().length ? "seed" : "run");
    const color = made.pick("Colors by", () => by.filter(([v]) => v === "" || v === "run" || (v === "seed" ? seeds() > 1 : several(v))),
      () => (varying.length === 0 && drawn().length > 1 ? alike() : few() ? "" : ["batch", "layout"].find(several) ?? ""));
    const smooth = made.pick("Smoothing", () => [["", "none"], ["0.6", "0.6"], ["0.9", "0.9"], ["0.99", "0.99"]], () => "");
    const along = made.pick("Along", () => [["step", "steps"], ["examples", "examples"], ["share", "part of the run"]], () => "step");
    const of = (run) => {
      const trait = color.value();
      if (trait === "seed") return `seed ${run.seed ?? "?"}`;
      return trait === "run" ? run.name : trait === "" ? label(run) : traits(run).get(trait) ?? "?";
    };
    return () => [{
      id: "steps", title: "Train loss by step", about: () => stepAbout(smooth.value()), height: 400, log: true,
      option: (made) => stepChart(made, of, along.value(), smooth.value()),
    }];
  });
  const stepAbout = (weight) => {
    const how = weight ? ` Smoothed: a moving average in which the points before have the weight ${weight}.` : "";
    const thinned = data.runs.map((run) => run.losses).filter((t) => t && t.of > t.steps.length);
    if (thinned.length === 0) return `A line is a run.${how}`;
    const most = (list) => number(Math.max(...list));
    const kept = `up to ${most(thinned.map((t) => t.steps.length))} of ${most(thinned.map((t) => t.of))} steps`;
    return `A line is a run, drawn by the least and the greatest loss of each stretch: ${kept}.${how}`;
  };
  /** Exponential moving averages of what are numbers, in which the first values do not count more than others. */
  const smoothed = (values, weight) => {
    let [sum, all] = [0, 0];
    return values.map((v) => {
      if (v === null) return null;
      [sum, all] = [weight * sum + (1 - weight) * v, weight * all + (1 - weight)];
      return sum / all;
    });
  };
  const stepChart = (made, of, along, weight) => {
    const runs = shown().filter((run) => run.losses?.steps.length > 0);
    if (runs.length === 0) return null;
    const color = palette(of);
    const x = (run, step) => (along === "examples" ? step * (batchOf(run) ?? 1) : along === "share" ? step / run.losses.steps.at(-1) : step);
    const many = runs.length > 30;
    const points = (run) => {
      const losses = smoothed(run.losses.losses, Number(weight));
      return run.losses.steps.map((step, at) => [x(run, step), losses[at]]);
    };
    const series = runs.map((run) => ({
      type: "line", name: of(run), run: run.name, showSymbol: false, data: points(run),
      lineStyle: { width: many ? 1 : 1.5, opacity: many ? 0.55 : 0.9, color: color(of(run)) }, itemStyle: { color: color(of(run)) },
      emphasis: { disabled: true }, z: 3,
    })).sort((a, b) => natural(a.name, b.name));
    const at = (v) => (along === "share" ? `${number(Math.round(v * 1000) / 10)} % of the run` : `${along} ${number(Math.round(v))}`);
    const names = { share: "part of the run", step: "step", examples: "examples" };
    return {
      grid: GRID, xAxis: axis(names[along], { min: 0, max: "dataMax" }), yAxis: valueAxis(made, number, { name: "train loss" }), series,
      tooltip: { trigger: "axis", formatter: (params) => stepTip(series.filter((s) => !made.hidden.has(s.name)), Number(params[0].axisValue), at) },
    };
  };

  /** The point of a run that is nearest to an x, of those that are numbers; none beyond the ends of the run. */
  const nearest = (points, x) => {
    if (x < points[0][0] || x > points.at(-1)[0]) return undefined;
    let [low, high] = [0, points.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle + 1; else high = middle;
    }
    const two = [points[low - 1], points[low]].filter((p) => p && p[1] !== null);
    return two.sort((a, b) => Math.abs(a[0] - x) - Math.abs(b[0] - x))[0];
  };
  /** All runs at an x. Each keeps steps of its own, so that few have a point right there: what is said is the nearest, and where. */
  const stepTip = (series, x, at) => {
    const near = series.map((s) => [s, nearest(s.data, x)]).filter(([, point]) => point).sort(([, a], [, b]) => b[1] - a[1]);
    return tip(at(x), near.map(([s, point]) => [s.itemStyle.color, s.run, `${number(point[1])}${at(point[0]) === at(x) ? "" : ` at ${at(point[0])}`}`]));
  };

  // Results by what runs are made with.

  const settingOf = (run, name) => (name === "batch" ? batchOf(run) : own(run.dims, name) ?? own(run.sets, name));
  /** The consts and sizes, and the batch size, that are numbers and differ. */
  const settings = () => varying.filter((name) => data.runs.some((run) => typeof settingOf(run, name) === "number"));
  /** Lines of runs that differ in one setting alone; where there are none, as of values that were drawn, points of all runs. */
  const settingGroups = (runs, name) => {
    const at = (run) => settingOf(run, name);
    const alone = (run) => label(run, [name]);
    const lines = [...grouped(runs, alone).values()].some((some) => new Set(some.map(at)).size > 1);
    return { lines, of: lines ? alone : (run) => label(run, settings()) };
  };
  const settingChart = (made, name, [metric, set]) => {
    const last = (run) => own(own(run.epochs?.sets, set), metric)?.findLast((v) => v !== null);
    const runs = shown().filter((run) => typeof settingOf(run, name) === "number" && typeof last(run) === "number");
    const values = runs.map((run) => settingOf(run, name));
    if (new Set(values).size < 2) return null;
    const { lines, of } = settingGroups(runs, name);
    const color = palette(of);
    const found = [...grouped(runs, of)].map(([title, some]) =>
      [title, color(title), spread(some.map((run) => [settingOf(run, name), last(run)])), whole(some)]);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    // What spans decades is even apart in its logarithm.
    const along = least > 0 && most / least >= 20 ? { type: "log", min: least, max: most } : { type: "value", min: "dataMin", max: "dataMax" };
    const drawn = lines ? undefined : (l) => [line(l[0], l[1], l[2], { lineStyle: { width: 0 }, showSymbol: true, symbolSize: 7 })];
    const axisLabel = { formatter: (v) => number(v), color: page.ink("faint"), hideOverlap: true };
    return chartOf(found, made, axis(name === "batch" ? "batch size" : name, { ...along, axisLabel }),
      { name: metric, heading: (x) => `${name} ${number(x)}`, drawn });
  };
  const settingSection = () => sectionOf("Results by setting", () => "What runs had reached at their last evaluation, over what they are made with.", (made) => {
    const picked = made.pick("Over", () => settings().map((name) => [name, name === "batch" ? "batch size" : name]), (now) => now[0]?.[0] ?? "", 2);
    const over = () => picked.value() || settings()[0];
    const given = ([metric, set]) => ({
      id: id("setting", set, metric), title: `${upper(set)} ${metric} by setting`, log: true,
      option: (c) => (over() ? settingChart(c, over(), [metric, set]) : null),
    });
    return () => measured().map(given);
  });

  // Times.

  const seconds = (v) => {
    const [least, name] = [[60, "min"], [1, "s"], [1e-3, "ms"]].find(([from, unit]) => v >= (unit === "min" ? 600 : from)) ?? [1e-6, "µs"];
    return v === 0 ? "0 s" : `${number(v / least)} ${name}`;
  };
  const rate = (v) => (v >= 1e6 ? `${number(v / 1e6)} M/s` : v >= 1e4 ? `${number(v / 1e3)} k/s` : `${number(v)}/s`);
  const categories = (lines) => [...new Set(lines.flatMap(([, , points]) => points.map((p) => p[0])))].sort((a, b) => a - b);
  const onCategories = (names, [name, color, points]) => [name, color, points.map(([x, ...ys]) => [names.indexOf(x), ...ys])];

  const timeChart = (made) => {
    const of = (run) => label(run, ["batch"]);
    const color = palette(of);
    const runs = shown().filter((run) => run.step_seconds && batchOf(run) && run.examples);
    const lines = [...grouped(runs, of)].map(([name, some]) => [name, color(name),
      spread(some.map((run) => [batchOf(run), Math.floor(run.examples / batchOf(run)) * run.step_seconds]))]);
    const sizes = categories(lines);
    if (sizes.length < 2) return null;
    // Batch sizes are even apart: 10 and 50 would be one point beside 1000.
    const drawn = lines.flatMap((l) => withSpread(onCategories(sizes, l)));
    const xAxis = axis("batch size", { type: "category", data: sizes.map(String), boundaryGap: false });
    return chartOf(lines, made, xAxis, { name: "time of an epoch", unit: seconds, heading: (x) => `batch ${x}`, series: drawn, scale: made.log });
  };

  /** A point for each layout and batch size, on as many bytes as its Plan gives to collectives. */
  const bytesChart = (made) => {
    const of = (run) => label(run, ["batch"]);
    const color = palette(of);
    const given = (run) => run.collectives.reduce((sum, c) => sum + c[3], 0);
    const runs = shown().filter((run) => run.step_seconds && run.collectives && (!made.log || given(run) > 0));
    if (new Set(runs.map(given)).size < 2) return null;
    const series = [...grouped(runs, of)].map(([name, some]) => {
      const point = (same) => spread(same.map((run) => [0, run.step_seconds]))[0];
      const sizes = [...grouped(some, (run) => label(run))].map(([title, same]) => [title, given(same[0]), point(same)]);
      return {
        type: "scatter", name, data: sizes.map(([, x, point]) => [x, point[1]]), tips: sizes, symbolSize: 9,
        itemStyle: { color: color(name), opacity: 0.85 }, emphasis: { disabled: true }, z: 3,
      };
    });
    const most = Math.max(...runs.map(given));
    const xAxis = { name: "bytes given to collectives in a step", ...(made.log ? { type: "log", logBase: 2, ...byteLabels() } : byteAxis(most)) };
    return {
      grid: GRID, xAxis, yAxis: valueAxis(made, seconds, { name: "time of a step", scale: false }), series,
      tooltip: { trigger: "item", formatter: (p) => {
        const [title, x, point] = series[p.seriesIndex].tips[p.dataIndex];
        return tip(title, [[p.color, "collectives", bytes(x)], [p.color, "a step", value(point, seconds)]]);
      } },
    };
  };

  /** Lines of examples a second against devices; of several meshes of equal size the fastest counts. */
  const scaling = (work, among) => {
    const usable = among.filter((run) => run.per_second && run.devices && batchOf(run));
    const alone = usable.filter((run) => run.devices === 1);
    const name = (run) => [label(run, ["batch", "layout"]), run.layout ?? "replicated", work(run)].filter((w) => w && w !== "all runs").join(", ");
    const groups = grouped(usable.filter((run) => run.devices > 1), name);
    return [...groups].map(([title, runs]) => {
      const same = (run) => work(run) === work(runs[0]) && label(run, ["batch", "layout"]) === label(runs[0], ["batch", "layout"]);
      const meshes = [...grouped([...alone.filter(same), ...runs], (run) => `${run.devices} ${run.mesh}`).values()];
      const all = meshes.map((some) => spread(some.map((run) => [run.devices, run.per_second]))[0]);
      const best = new Map();
      for (const point of all) if (!(best.get(point[0])?.[1] >= point[1])) best.set(point[0], point);
      return [title, [...best.values()].sort((a, b) => a[0] - b[0])];
    }).filter(([, points]) => points.length > 1);
  };
  const scalingChart = (made, work) => {
    // The place of a line among those that there are without a filter is its color.
    const names = scaling(work, data.runs).map(([name]) => name);
    const found = scaling(work, shown()).map(([name, points]) => [name, hueOf(names.indexOf(name), names.length), points]);
    const ideal = ([name, color, points]) => {
      const [first, last] = [points[0], points.at(-1)];
      const more = { silent: true, symbol: "none", lineStyle: { type: "dotted", width: 1.5, color }, z: 2, tooltip: { show: false } };
      return line(name, color, [first, [last[0], (first[1] * last[0]) / first[0]]], more);
    };
    const series = found.flatMap((l) => [...withSpread(l), ideal(l)]);
    const along = made.log ? { type: "log", logBase: 2, min: "dataMin" } : { type: "value", min: 0 };
    const xAxis = axis("devices", { ...along, max: "dataMax", minInterval: 1 });
    return chartOf(found, made, xAxis, { name: "examples a second", unit: rate, heading: (x) => `${x} devices`, series, scale: made.log });
  };

  const speed = () => sectionOf("Speed", () => "By the median step of each run, with the wait for its data and without evaluations.", () => {
    const ideal = "Dotted: ideal, from the fewest devices.";
    const charts = [
      { id: "time", title: "Time per epoch by batch size", about: "Steps of an epoch times the median step.", option: timeChart },
      { id: "bytes", title: "Time of a step by the bytes of its collectives", zoom: "xy", option: bytesChart,
        about: "A point is a layout at a batch size; bytes are those that a device gives to collectives in a step, by the Plan." },
      { id: "strong", title: "Strong scaling: throughput by devices", about: `The batch is the same on more devices. ${ideal}`,
        option: (made) => scalingChart(made, (run) => `batch ${batchOf(run)}`) },
      { id: "weak", title: "Weak scaling: throughput by devices", about: `The batch grows with the devices. ${ideal}`,
        option: (made) => scalingChart(made, (run) => `batch ${number(batchOf(run) / run.devices)} a device`) },
    ].map((given) => ({ ...given, log: true, note: () => given.about }));
    return () => charts;
  });

  // Costs by the Plan.

  /** One run of each kind: all seeds have one Plan. */
  const kinds = (runs, picked) => [...grouped(runs, (run) => label(run, picked ? ["batch"] : []))].map(([name, some]) => [name, some[0]]);
  /** Bytes have even ticks in powers of two. */
  const byteAxis = (most) => {
    const interval = 2 ** Math.max(Math.ceil(Math.log2(Math.max(most, 1) / 5)), 0);
    return { type: "value", interval, max: Math.ceil(most / interval) * interval, ...byteLabels() };
  };
  const byteLabels = () => ({ axisLabel: { formatter: bytes, color: page.ink("faint"), hideOverlap: true } });
  const bars = (title, runs, parts) => {
    const names = runs.map(([name]) => name);
    const total = (at) => parts.reduce((sum, [, values]) => sum + (values[at] ?? 0), 0);
    return {
      grid: { ...GRID, right: 32 },
      xAxis: { name: title, ...byteAxis(Math.max(...names.map((_, at) => total(at)))) },
      yAxis: { type: "category", data: names, inverse: true,
        axisLabel: { formatter: page.drawable, color: page.ink("faint"), width: page.main.clientWidth < 600 ? 110 : 190, overflow: "truncate" } },
      tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, formatter: (params) => {
        const at = params[0].dataIndex;
        return tip(`${names[at]}: ${bytes(total(at))}`, params.filter((p) => p.value > 0).map((p) => [p.color, p.seriesName, bytes(p.value)]));
      } },
      series: parts.map(([name, values], at) => ({
        type: "bar", stack: "all", name, data: values, barMaxWidth: 22, itemStyle: { color: hueOf(at, parts.length) }, emphasis: { disabled: true },
      })),
    };
  };
  const costs = () => sectionOf("Costs by the Plan", () => "Of a training step on a device, that with the largest blocks.", (made) => {
    const picked = made.pick("Batch size", valuesOf("batch", "all batch sizes"), middle);
    const runs = () => only(shown(), "batch", picked.value());
    const talking = () => kinds(runs().filter((run) => run.collectives?.length > 0), picked.value());
    const collectives = () => {
      const some = talking();
      const name = ([op, axes]) => `${op.replaceAll("_", "-")} over ${axes}`;
      const names = [...new Set(some.flatMap(([, run]) => run.collectives.map(name)))].sort(natural);
      if (names.length === 0) return null;
      const given = (run, n) => run.collectives.filter((c) => name(c) === n).reduce((sum, c) => sum + c[3], 0);
      return bars("bytes in a step", some, names.map((n) => [n, some.map(([, run]) => given(run, n))]));
    };
    const planned = () => kinds(runs().filter((run) => run.memory), picked.value());
    const memory = () => {
      const some = planned();
      if (some.length === 0) return null;
      const uses = some[0][1].memory.map(([name], at) => [name, some.map(([, run]) => run.memory[at][1])]);
      return bars("bytes at the peak", some, uses.filter(([, values]) => values.some((v) => v > 0)));
    };
    const tall = (list) => () => 84 + 30 * Math.max(list().length, 2);
    const charts = [
      { id: "collectives", title: "Bytes given to collectives", about: "By collective and mesh axis.", size: tall(talking), option: collectives },
      { id: "memory", title: "Peak memory by kind", about: "What a device holds at the peak of a step.", size: tall(planned), option: memory },
    ].map((given) => ({ ...given, zoom: "", note: () => given.about }));
    return () => charts;
  });

  // The table.

  const BYTES = /_bytes$/;
  const titleOf = (name) => name.replace(/^(step_ms)_(.+)$/, "step ms $2").replaceAll("_", " ").replace(/ bytes$/, "");
  const cells = { state: (v) => element("span", {}, element("i", { class: `state ${v}` }), String(v)),
    mesh: (v) => String(v ?? "-"), layout: (v) => String(v ?? "-"),
    error: (v) => (v ? element("span", { title: v }, v.split("\n")[0]) : "-") };
  /** Columns that say something: not those that are empty, or the same everywhere. */
  const columns = () => {
    const says = ({ name }, at) => {
      const values = new Set(data.rows.map((row) => row[at]));
      return name === "run" || name === "state" || (values.size > 1 || data.rows.length < 2) && [...values].some((v) => v !== null);
    };
    return data.columns.map((c, at) => [c, at]).filter(([c, at]) => says(c, at));
  };
  const same = () => {
    const kept = new Set(columns().map(([, at]) => at));
    const all = data.rows.length > 0 ? data.columns.map(({ name }, at) => [name, at, data.rows[0][at]]) : [];
    const shown = (name, v) => (BYTES.test(name) ? bytes(v) : typeof v === "number" ? number(v) : v);
    const words = all.filter(([, at, v]) => !kept.has(at) && v !== null).map(([name, , v]) => `${titleOf(name)} ${shown(name, v)}`);
    return words.length > 0 ? `The same in all: ${words.join(", ")}.` : "";
  };
  const tabled = () => {
    const kept = columns();
    const heads = kept.map(([{ name, kind, better }]) => ({
      name, title: titleOf(name) + (better ? ` (${better})` : ""), text: kind === "text", class: name === "error" ? "error" : "",
      show: own(cells, name) ?? (BYTES.test(name) ? bytes : undefined),
    }));
    const rows = data.rows.map((row) => kept.map(([, at]) => row[at]));
    places = new Map(rows.map((row, at) => [row, at]));
    return [heads, rows];
  };
  let places = new Map();
  let waiting;
  const filtered = (rows) => {
    const now = new Set(rows.map((row) => places.get(row)));
    const as = now.size === passing.size && [...now].every((at) => passing.has(at));
    passing = now;
    if (as) return;
    // While somebody types, charts wait.
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  };
  const redraw = () => sections.forEach((made) => made.charts.forEach((c) => c.draw()));

  const about = element("p", { class: "about" });
  const problems = element("details", { class: "problems" });
  const tell = () => {
    const states = grouped(data.runs, (run) => run.state);
    const counts = [...states].map(([state, some]) => `${some.length} ${state}`).join(", ");
    about.textContent = [`${data.runs.length} runs: ${counts}. ${best()}${same()}`, data.made].join(" ").trim();
    const error = data.columns.findIndex((c) => c.name === "error");
    const why = new Map();
    data.rows.filter((row) => row[error]).forEach((row) => why.set(row[error], [...(why.get(row[error]) ?? []), row[0]]));
    const unreadable = data.unreadable ?? [];
    const count = why.size + unreadable.length;
    problems.hidden = count === 0;
    const names = (runs) => (runs.length > 6 ? `${runs.slice(0, 6).join(", ")} and ${runs.length - 6} more` : runs.join(", "));
    const told = [...why].map(([text, runs]) => [names(runs), text]);
    told.push(...unreadable.map((text) => ["cannot be read, and is left out", text]));
    problems.replaceChildren(element("summary", {}, `Why runs failed or were left out (${count})`),
      ...told.map(([title, text]) => element("div", {}, element("p", {}, title), element("pre", {}, text))));
  };
  /** What a search has chosen; without one, where the test loss is least. */
  const best = () => {
    const chosen = data.runs.filter((run) => run.chosen);
    if (chosen.length > 0) return `Chosen: ${chosen.map((run) => run.name).join(", ")}, ${chosen[0].chosen}. `;
    const at = data.columns.findIndex((c) => c.name === "test_loss");
    const rows = data.rows.filter((row) => at >= 0 && typeof row[at] === "number");
    if (rows.length < 2) return "";
    const least = rows.reduce((a, b) => (b[at] < a[at] ? b : a));
    return `Least test loss: ${number(least[at])} of ${least[0]}. `;
  };

  const start = () => {
    findVarying();
    const runs = section("Runs");
    runs.append(about);
    const [heads, rows] = tabled();
    const made = table(runs, { id: "runs", columns: heads, rows, changed: filtered });
    runs.append(problems);
    tell();
    curves();
    stepSection();
    settingSection();
    speed();
    costs();
    const hint = "In charts, Ctrl and the wheel or + and − zoom, dragging moves, arrow keys go from point to point and from line to line; "
      + "the filter of the table holds for charts too.";
    main.append(element("p", { class: "about hint" }, hint));
    return made;
  };
  const { main } = page;
  const runs = start();

  // A running job: what has changed is asked for again and again.

  const update = (now) => {
    const old = new Map(data.runs.map((run) => [run.name, run]));
    const before = data.runs.length;
    data = { ...data, ...now, runs: now.names.map((name) => own(now.changed, name) ?? old.get(name)) };
    if (passing.size === before) passing = new Set(data.runs.keys());
    findVarying();
    runs.update(...tabled());
    tell();
    clearTimeout(waiting);
    sections.forEach((made) => { made.picks.forEach((pick) => pick.update()); made.refresh(); });
    redraw();
  };
  const running = () => {
    const names = data.runs.filter((run) => run.state === "running").map((run) => run.name);
    const more = names.length > 3 ? ` and ${names.length - 2} more` : "";
    return names.length ? `live: ${names.slice(0, more ? 2 : 3).join(", ")}${more}` : "live, none is running";
  };
  const follow = (live) => {
    const sign = element("span", { class: "live", role: "status" }, element("i"), running());
    document.getElementById("theme").before(sign);
    let version = live.version;
    const ask = async () => {
      let [told, now] = [false, undefined];
      try {
        const answer = await fetch(`data.json?since=${version}`, { cache: "no-store" });
        now = answer.status === 200 ? await answer.json() : undefined;
        told = answer.ok;
      } catch {
        // Nobody answers: it is asked again.
      }
      sign.className = told ? "live" : "live lost";
      sign.lastChild.textContent = told ? running() : "not connected";
      setTimeout(ask, live.every);
      // What the page itself cannot do stands on its console, and is asked for again.
      if (now) {
        update(now);
        sign.lastChild.textContent = running();
        version = now.version;
      }
    };
    setTimeout(ask, live.every);
  };
  if (data.live) follow(data.live);
})();
