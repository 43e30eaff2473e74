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
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
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
   * A chart. `option()` gives an option of ECharts and is asked again when the theme changes; `zoom` may be "x", "y" or "xy".
   * Series of one name share a button of the legend.
   */
  const chart = (parent, { id, title, about, height = 320, option, zoom = "x", legend = true }) => {
    const place = element("div", { class: "chart", style: `height:${height}px`, tabindex: "0", role: "img", "aria-label": title });
    const keys = element("div", { class: "legend", role: "group", "aria-label": `Series of ${title}` });
    const made = { id, place, keys, hidden: new Set(), instance: undefined, option };
    const tools = element("span", { class: "tools" },
      element("button", { type: "button", "aria-label": `${title}: whole`, onclick: () => unzoom(made) }, "Whole"),
      element("button", { type: "button", "aria-label": `${title} as SVG`, onclick: () =>
        download(`${id}.svg`, `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg(made))}`) }, "SVG"),
      element("button", { type: "button", "aria-label": `${title} as PNG`, onclick: () => download(`${id}.png`, png(made)) }, "PNG"));
    const caption = element("figcaption", {}, element("span", {}, title), tools);
    if (about) caption.append(element("small", {}, about));
    parent.append(element("figure", { id: `chart-${id}` }, caption, place, keys));
    made.draw = () => draw(made, zoom, legend);
    charts.set(id, made);
    place.addEventListener("keydown", (event) => walk(made, event));
    made.draw();
    new ResizeObserver(() => made.instance.resize()).observe(place);
    return made;
  };

  const unzoom = (made) => {
    (made.instance.getOption().dataZoom ?? []).forEach((_, at) =>
      made.instance.dispatchAction({ type: "dataZoom", dataZoomIndex: at, start: 0, end: 100 }));
  };

  const draw = (made, zoom, legend) => {
    const option = complete(made.option());
    const inside = { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true };
    const zooms = [];
    if (zoom.includes("x")) zooms.push({ ...inside, xAxisIndex: "all" });
    if (zoom.includes("y")) zooms.push({ ...inside, yAxisIndex: "all" });
    made.instance?.dispose();
    made.instance = echarts.init(made.place);
    made.instance.setOption({ ...option, dataZoom: option.dataZoom ?? zooms });
    made.hidden.forEach((name) => made.instance.dispatchAction({ type: "legendUnSelect", name }));
    const names = option.legend.data;
    made.keys.replaceChildren();
    if (!legend || names.length < 2) return;
    for (const name of names) {
      const first = option.series.findIndex((s) => s.name === name);
      const color = made.instance.getVisual({ seriesIndex: first }, "color") ?? ink("faint");
      const key = element("button", { type: "button", "aria-pressed": String(!made.hidden.has(name)), style: `--mark:${color}`,
        onclick: () => toggle(made, key, name) }, element("i"), String(name));
      made.keys.append(key);
    }
  };

  const toggle = (made, key, name) => {
    const shown = made.hidden.delete(name) || (made.hidden.add(name), false);
    key.setAttribute("aria-pressed", String(shown));
    made.instance.dispatchAction({ type: shown ? "legendSelect" : "legendUnSelect", name });
  };

  /** Arrow keys move from point to point and say what the mouse would; + and - zoom, Escape lets go. */
  const walk = (made, event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const shown = (made.instance.getOption().series ?? []).findIndex((s) => !made.hidden.has(s.name));
    if (step !== undefined && shown >= 0) {
      const count = made.instance.getOption().series[shown].data?.length ?? 0;
      made.at = Math.min(Math.max((made.at ?? -1) + step, 0), count - 1);
      made.instance.dispatchAction({ type: "showTip", seriesIndex: shown, dataIndex: made.at });
    } else if (event.key === "+" || event.key === "-") {
      const now = made.instance.getOption().dataZoom?.[0];
      if (!now) return;
      const middle = (now.start + now.end) / 2;
      const half = (now.end - now.start) / (event.key === "+" ? 4 : 1);
      made.instance.dispatchAction({ type: "dataZoom", start: Math.max(0, middle - half), end: Math.min(100, middle + half) });
    } else if (event.key === "Escape") {
      made.instance.dispatchAction({ type: "hideTip" });
    } else {
      return;
    }
    event.preventDefault();
  };

  const order = (a, b) => {
    const missing = (v) => v === null || v === undefined || Number.isNaN(v);
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  };

  /**
   * A table. `columns`: `name`, `title`, and where wanted `show(value, row)` and `text` (aligned to the left); `rows`: arrays of values.
   * Words in the filter must all occur; `column>1.5`, `<`, `>=`, `<=`, `=` compare a column. `changed(rows)` hears which rows are shown.
   */
  const table = (parent, { id, columns, rows, changed }) => {
    const state = { by: -1, down: false };
    const body = element("tbody");
    const heads = columns.map((column, at) => element("th", { scope: "col", class: column.text ? "text" : "", "aria-sort": "none" },
      element("button", { type: "button", onclick: () => { state.down = state.by === at && !state.down; state.by = at; fill(); } }, column.title)));
    const count = element("span", { class: "about", role: "status" });
    const input = element("input", { type: "search", "aria-label": "Filter rows", placeholder: "filter: words, or column>1.5", oninput: () => fill() });
    const passes = (row) => input.value.split(/\s+/).filter(Boolean).every((word) => {
      const compared = /^([\w.-]+?)(>=|<=|=|<|>)(.+)$/.exec(word);
      const at = compared ? columns.findIndex((c) => c.name === compared[1] || c.title === compared[1]) : -1;
      if (at < 0) return row.some((v) => String(v ?? "").toLowerCase().includes(word.toLowerCase()));
      const by = Number.isNaN(Number(compared[3])) ? compared[3] : Number(compared[3]);
      if (row[at] === null || row[at] === undefined) return false;
      const sign = Math.sign(order(row[at], by));
      return { ">": sign > 0, "<": sign < 0, ">=": sign >= 0, "<=": sign <= 0, "=": sign === 0 }[compared[2]];
    });
    const cell = (column, row, at) => element("td", { class: column.text ? "text" : "" },
      column.show ? column.show(row[at], row) : typeof row[at] === "number" ? number(row[at]) : String(row[at] ?? "-"));
    const fill = () => {
      const shown = rows.filter(passes);
      // What is missing comes last in both directions.
      if (state.by >= 0) shown.sort((a, b) => {
        const [x, y] = [a[state.by], b[state.by]];
        return state.down && x !== null && y !== null ? order(y, x) : order(x, y);
      });
      heads.forEach((head, at) => head.setAttribute("aria-sort", at !== state.by ? "none" : state.down ? "descending" : "ascending"));
      body.replaceChildren(...shown.map((row) => element("tr", {}, ...columns.map((c, at) => cell(c, row, at)))));
      count.textContent = `${shown.length} of ${rows.length}`;
      changed?.(shown);
    };
    parent.append(element("div", { class: "filter" }, input, count),
      element("div", { class: "table", id: `table-${id}`, tabindex: "0" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)));
    fill();
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
  addEventListener("beforeprint", () => { before = root.dataset.theme; setTheme("light"); });
  addEventListener("afterprint", () => setTheme(before));

  return { data, main, colors, charts, element, section, chart, table, number, bytes, ink, dark, onTheme, svg, png };
})();
