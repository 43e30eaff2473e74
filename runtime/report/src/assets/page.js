"use strict";
// What all pages have alike. Charts are drawn by ECharts; legends are buttons of the page itself, so that they work by keyboard.
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  const root = document.documentElement;
  // Distinct for people who see red and green alike, on light and on dark paper.
  const colors = ["#3b76c9", "#e08214", "#2a9d6f", "#c2478f", "#8565c4", "#b8a11a", "#3aa6c2", "#c4553b", "#6b7a8c", "#7fa83b"];
  const charts = new Map();
  const followers = [];

  /** An element: attributes by name (`on` plus an event takes a function), then children or text. */
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== null) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  /** A section with a heading and a line about it; what it holds is put into the element that is returned. */
  const section = (title, about) => {
    const made = element("section", {}, element("h2", {}, title));
    if (about) made.append(element("p", { class: "about" }, about));
    main.append(made);
    return made;
  };

  const dark = () => root.dataset.theme === "dark";
  const ink = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  /** A number in few digits. */
  const number = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "-";
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : Number(value.toPrecision(5)).toLocaleString("en-US", { maximumFractionDigits: 8 });
  };

  /** Bytes in units of 1024. */
  const bytes = (count) => {
    if (count === null || count === undefined) return "-";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(count) >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
    return `${Number(count.toPrecision(4))} ${units[unit]}`;
  };

  /** What all charts have alike, under what a chart says itself. */
  const complete = (option) => {
    const axis = (given) => ({
      axisLine: { lineStyle: { color: ink("line") } },
      axisLabel: { color: ink("faint") },
      nameTextStyle: { color: ink("faint") },
      splitLine: { lineStyle: { color: ink("line"), opacity: 0.6 } },
      nameLocation: "middle",
      ...given,
      nameGap: given.nameGap ?? 28,
    });
    const axes = (given) => given && (Array.isArray(given) ? given.map(axis) : axis(given));
    return {
      color: colors,
      animation: false,
      backgroundColor: "transparent",
      textStyle: { color: ink("ink") },
      grid: { left: 64, right: 24, top: 16, bottom: 52 },
      aria: { enabled: true },
      ...option,
      tooltip: {
        confine: true, backgroundColor: ink("panel"), borderColor: ink("line"), textStyle: { color: ink("ink"), fontSize: 12 },
        ...option.tooltip,
      },
      legend: { show: false, data: [...new Set((option.series ?? []).map((s) => s.name).filter((n) => n !== undefined))] },
      xAxis: axes(option.xAxis),
      yAxis: axes(option.yAxis),
    };
  };

  const download = (name, href) => {
    const link = element("a", { href, download: name });
    document.body.append(link);
    link.click();
    link.remove();
  };

  /** The chart as a drawing, with the series that are shown. */
  const svg = (made) => {
    const place = element("div");
    const plain = echarts.init(place, null, {
      renderer: "svg", ssr: true, width: made.place.clientWidth, height: made.place.clientHeight,
    });
    plain.setOption({ ...made.instance.getOption(), backgroundColor: ink("paper") });
    const text = plain.renderToSVGString();
    plain.dispose();
    return text;
  };

  const png = (made) => made.instance.getDataURL({ pixelRatio: 2, backgroundColor: ink("paper") });

  /**
   * A chart. `option(made)` gives an option of ECharts, or nothing where there is nothing to draw, and is asked again when the theme or
   * the data change; `zoom` may be "x", "y" or "xy"; `log` adds a button for a logarithmic axis, of which `made.log` tells. Series of
   * one name share a button of the legend; one that is `silent` belongs to another of its name. `size()` is the height in pixels. One
   * that is `lazy` is drawn when those in view are, and `settled` tells when; `drawn` hears of it each time.
   */
  const chart = (parent, { id, title, about, height = 320, size, option, zoom = "x", legend = true, log = false, lazy = false, drawn }) => {
    const place = element("div", { class: "chart", style: `height:${height}px`, tabindex: "0", role: "img", "aria-label": title });
    const keys = element("div", { class: "legend", role: "group", "aria-label": `Series of ${title}` });
    const status = element("span", { class: "unseen", role: "status" });
    const made = { id, place, keys, status, hidden: new Set(), instance: undefined, option, size, zoom, legend, log: false, current: undefined, drawn };
    const tool = (text, label, onclick, more = {}) => element("button", { type: "button", "aria-label": `${title}: ${label}`, onclick, ...more }, text);
    const tools = element("span", { class: "tools" },
      ...(log ? [tool("Log", "logarithmic axis", (event) => {
        made.log = !made.log;
        event.currentTarget.setAttribute("aria-pressed", String(made.log));
        draw(made);
      }, { "aria-pressed": "false" })] : []),
      ...(zoom ? [tool("Whole", "whole", () => unzoom(made))] : []),
      tool("SVG", "download as SVG", () => upToDate(made) && download(`${id}.svg`, `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg(made))}`)),
      tool("PNG", "download as PNG", () => upToDate(made) && download(`${id}.png`, png(made))));
    const caption = element("figcaption", {}, element("span", {}, title), tools);
    if (about) caption.append(element("small", {}, about));
    made.figure = element("figure", { id: `chart-${id}` }, caption, place, keys, status);
    parent.append(made.figure);
    made.draw = lazy ? () => drawSoon(made) : () => draw(made);
    charts.set(id, made);
    place.addEventListener("keydown", (event) => walk(made, event));
    made.draw();
    new ResizeObserver(() => { if (made.instance && place.clientWidth > 0 && !fitsPlace(made)) made.instance.resize(); }).observe(place);
    return made;
  };

  const fitsPlace = ({ instance, place }) => instance.getWidth() === place.clientWidth && instance.getHeight() === place.clientHeight;

  // Many large charts take a while: those in view come first, and between two of them the page answers.
  const stale = new Set();
  let [drawing, waiting] = [undefined, []];
  const drawSoon = (made) => {
    stale.add(made);
    drawing ??= setTimeout(drawNext);
  };
  const inView = ({ figure }) => {
    const box = figure.getBoundingClientRect();
    return box.bottom > -200 && box.top < innerHeight + 200;
  };
  const drawNext = () => {
    const next = [...stale].find(inView) ?? [...stale][0];
    // One that fails keeps none of the others from being drawn.
    drawing = stale.size > 1 ? setTimeout(drawNext) : undefined;
    if (next) draw(next);
    if (stale.size === 0) waiting.splice(0).forEach((tell) => tell());
  };
  /** When all charts are drawn as they are to be. */
  const settled = () => (stale.size === 0 ? Promise.resolve() : new Promise((tell) => waiting.push(tell)));
  const upToDate = (made) => { if (stale.has(made)) draw(made); return true; };

  const zooms = (made) => made.current?.dataZoom ?? [];
  const zoomTo = (made, start, end) =>
    zooms(made).forEach((_, at) => made.instance.dispatchAction({ type: "dataZoom", dataZoomIndex: at, start, end }));
  const unzoom = (made) => zoomTo(made, 0, 100);

  /** Draws a chart, or draws it again: what is zoomed and hidden stays so. */
  const draw = (made) => {
    stale.delete(made);
    const asked = made.option(made);
    made.figure.hidden = !asked;
    if (asked) drawOption(made, asked);
    made.drawn?.();
  };

  const drawOption = (made, asked) => {
    if (made.size) made.place.style.height = `${made.size()}px`;
    const option = complete(asked);
    // A finger scrolls the page.
    const drags = !matchMedia("(pointer: coarse)").matches;
    const inside = { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: drags, preventDefaultMouseMove: drags };
    const given = ["x", "y"].filter((axis) => made.zoom && made.zoom.includes(axis)).map((axis) => ({ ...inside, [`${axis}AxisIndex`]: "all" }));
    option.dataZoom = option.dataZoom ?? given;
    option.legend.selected = Object.fromEntries([...made.hidden].map((name) => [name, false]));
    made.instance ??= echarts.init(made.place);
    if (!fitsPlace(made)) made.instance.resize();
    made.instance.setOption(option, { replaceMerge: ["series"] });
    made.current = option;
    fillLegend(made);
  };

  const colorOf = (made, name) => {
    const first = made.current.series.find((s) => s.name === name);
    return first?.itemStyle?.color ?? first?.lineStyle?.color ?? colors[made.current.legend.data.indexOf(name) % colors.length];
  };

  const fillLegend = (made) => {
    const names = made.current.legend.data;
    made.keys.hidden = !made.legend || names.length < 2;
    if (made.keys.hidden) return made.keys.replaceChildren();
    const focused = document.activeElement?.dataset?.name;
    const inside = made.keys.contains(document.activeElement);
    const show = (which) => { made.hidden = new Set(names.filter((name) => !which(name))); draw(made); };
    const key = (name) => element("button", {
      type: "button", "data-name": name, "aria-pressed": String(!made.hidden.has(name)), style: `--mark:${colorOf(made, name)}`,
      title: "Click hides or shows it, with Shift it alone",
      onclick: (event) => event.shiftKey ? show((other) => other === name) : toggle(made, event.currentTarget, name),
    }, element("i"), String(name));
    // Where there are many, nobody hides all but one by hand.
    const all = names.length < 7 ? [] : [
      element("button", { type: "button", class: "all", onclick: () => show(() => true) }, "All"),
      element("button", { type: "button", class: "all", onclick: () => show(() => false) }, "None")];
    made.keys.replaceChildren(...all, ...names.map(key));
    if (inside) [...made.keys.children].find((child) => child.dataset.name === focused)?.focus();
  };

  const toggle = (made, key, name) => {
    const shown = made.hidden.delete(name) || (made.hidden.add(name), false);
    key.setAttribute("aria-pressed", String(shown));
    made.instance.dispatchAction({ type: shown ? "legendSelect" : "legendUnSelect", name });
  };

  /** Arrow keys move from point to point and say what the mouse would; + and - zoom, Escape lets go. */
  const walk = (made, event) => {
    if (!made.current) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const shown = made.current.series.findIndex((s) => !s.silent && !made.hidden.has(s.name));
    if (step !== undefined && shown >= 0) {
      const count = made.current.series[shown].data?.length ?? 0;
      made.at = Math.min(Math.max((made.at ?? -1) + step, 0), count - 1);
      made.instance.dispatchAction({ type: "showTip", seriesIndex: shown, dataIndex: made.at });
      // What the tip says is drawn in the next frame.
      requestAnimationFrame(() => { made.status.textContent = made.place.lastElementChild?.innerText.replace(/\s*\n\s*/g, ", ") ?? ""; });
    } else if (event.key === "+" || event.key === "-") {
      const now = made.instance.getOption().dataZoom?.[0];
      if (!now) return;
      const middle = (now.start + now.end) / 2;
      const half = (now.end - now.start) / (event.key === "+" ? 4 : 1);
      zoomTo(made, Math.max(0, middle - half), Math.min(100, middle + half));
    } else if (event.key === "Escape") {
      made.instance.dispatchAction({ type: "hideTip" });
    } else {
      return;
    }
    event.preventDefault();
  };

  /** What a tip of a chart says: a heading, and rows of a color, a name and a value; of many the first ones. */
  const tip = (heading, rows, most = 14) => {
    const shown = rows.slice(0, most).map(([color, name, value]) => element("tr", {},
      element("td", { class: "text" }, element("i", { style: `background:${color}` }), String(name)), element("td", {}, String(value))));
    const more = rows.length > most ? [element("small", {}, `and ${rows.length - most} more`)] : [];
    return element("div", { class: "tip" }, element("b", {}, String(heading)), element("table", {}, element("tbody", {}, ...shown)), ...more);
  };

  const order = (a, b) => {
    const missing = (v) => v === null || v === undefined || Number.isNaN(v);
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  };

  /**
   * A table. `columns`: `name`, `title`, and where wanted `show(value, row)` and `text` (aligned to the left); `rows`: arrays of values.
   * Words in the filter must all occur; `column>1.5`, `<`, `>=`, `<=`, `=` compare a column. `changed(rows)` hears which rows are shown.
   * What it gives takes other columns and rows: the order and the filter stay.
   */
  const table = (parent, { id, columns, rows, changed }) => {
    const state = { by: undefined, down: false };
    const [head, body] = [element("tr"), element("tbody")];
    const count = element("span", { class: "about", role: "status" });
    const input = element("input", { type: "search", "aria-label": "Filter rows", placeholder: "filter: words, or column>1.5", oninput: () => fill() });
    const sortBy = (name) => { state.down = state.by === name && !state.down; state.by = name; fill(); };
    const cell = (column, row, at) => element("td", { class: [column.text ? "text" : "", column.class ?? ""].join(" ").trim() },
      column.show ? column.show(row[at], row) : typeof row[at] === "number" ? number(row[at]) : String(row[at] ?? "-"));
    const heads = () => head.replaceChildren(...columns.map((column) => element("th", { scope: "col", class: column.text ? "text" : "" },
      element("button", { type: "button", onclick: () => sortBy(column.name) }, column.title))));
    const fill = () => {
      const shown = rows.filter(filterOf(input.value, columns));
      const by = columns.findIndex((c) => c.name === state.by);
      // What is missing comes last in both directions.
      if (by >= 0) shown.sort((a, b) => (state.down && a[by] !== null && b[by] !== null ? order(b[by], a[by]) : order(a[by], b[by])));
      [...head.cells].forEach((c, at) => c.setAttribute("aria-sort", at !== by ? "none" : state.down ? "descending" : "ascending"));
      body.replaceChildren(...shown.map((row) => element("tr", {}, ...columns.map((c, at) => cell(c, row, at)))));
      count.textContent = `${shown.length} of ${rows.length}`;
      changed?.(shown);
    };
    parent.append(element("div", { class: "filter" }, input, count),
      element("div", { class: "table", id: `table-${id}`, tabindex: "0", role: "region", "aria-label": "Table" },
        element("table", {}, element("thead", {}, head), body)));
    heads();
    fill();
    return { update: (newColumns, newRows) => {
      const same = newColumns.length === columns.length && newColumns.every((c, at) => c.name === columns[at].name);
      [columns, rows] = [newColumns, newRows];
      if (!same) heads();
      fill();
    } };
  };

  /** Whether a row passes a filter. */
  const filterOf = (text, columns) => {
    const tests = text.split(/\s+/).filter(Boolean).map((word) => {
      const compared = /^([\w.-]+?)(>=|<=|=|<|>)(.+)$/.exec(word);
      const at = compared ? columns.findIndex((c) => c.name === compared[1] || c.title === compared[1]) : -1;
      if (at < 0) return (row) => row.some((v) => String(v ?? "").toLowerCase().includes(word.toLowerCase()));
      const by = Number.isNaN(Number(compared[3])) ? compared[3] : Number(compared[3]);
      const holds = { ">": (s) => s > 0, "<": (s) => s < 0, ">=": (s) => s >= 0, "<=": (s) => s <= 0, "=": (s) => s === 0 }[compared[2]];
      return (row) => row[at] !== null && row[at] !== undefined && holds(Math.sign(order(row[at], by)));
    });
    return (row) => tests.every((test) => test(row));
  };

  const setTheme = (name) => {
    root.dataset.theme = name;
    charts.forEach((made) => made.draw());
    followers.forEach((follow) => follow());
  };
  /** Calls a function after each change of the theme. */
  const onTheme = (follow) => followers.push(follow);

  const system = matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = system.matches ? "dark" : "light";
  system.addEventListener("change", () => setTheme(system.matches ? "dark" : "light"));
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", () => setTheme(dark() ? "light" : "dark"));
  // Paper is white.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; setTheme("light"); [...stale].forEach(draw); });
  addEventListener("afterprint", () => setTheme(before));

  return { data, main, colors, charts, element, section, chart, table, tip, number, bytes, ink, dark, onTheme, settled, svg, png };
})();
