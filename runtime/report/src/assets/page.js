"use strict";
// What all pages have alike. Charts are drawn by ECharts; legends are buttons of the page itself, so that they work by keyboard.
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  const root = document.documentElement;
  // Distinct for people who see red and green alike, on light and on dark paper.
  const colors = ["#3b76c9", "#e08214", "#2a9d6f", "#c2478f", "#8565c4", "#b8a11a", "#3aa6c2", "#c4553b", "#6b7a8c", "#7fa83b"];
  const charts = new Map();

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

  /** A number as it was typed, or with six digits where it has more. */
  const number = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "-";
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    const short = Number(value.toPrecision(6));
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return short.toExponential();
    return short.toLocaleString("en-US", { maximumFractionDigits: 8 });
  };

  /** Bytes in units of 1024. */
  const bytes = (count) => {
    if (count === null || count === undefined) return "-";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(count) >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
    return `${Number(count.toPrecision(4))} ${units[unit]}`;
  };

  /**
   * A text that may be drawn. The library keeps widths of texts by these in a plain object, where names that every object has, such as
   * `constructor`, would be taken for widths: they get a mark that is not seen.
   */
  const drawable = (text) => (text in Object.prototype ? `\u2060${text}` : text);

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

  // A file stands by itself: what the page says around a chart is in it, and it is never as narrow as a phone.
  const LEAST_WIDTH = 640;
  const MARGIN = 12;
  const KEY = { row: 22, mark: 30, gap: 12, most: 60, font: "12px sans-serif" };
  const HEADING = { font: "bold 15px sans-serif", row: 21 };
  const NOTE = { font: "12px sans-serif", row: 17 };
  const widthOf = (text, font) => echarts.format.getTextRect(drawable(text), font).width;
  /** Words in rows that are no wider than there is room, but for a word that is wider itself. */
  const inRows = (text, font, room) => text.split("\n").flatMap((line) => line.split(" ").reduce((rows, word) => {
    const longer = rows.length > 0 ? `${rows.at(-1)} ${word}` : word;
    return rows.length > 0 && widthOf(longer, font) > room ? [...rows, word] : [...rows.slice(0, -1), longer];
  }, []));

  /** The key of a file: the series that are shown, in rows, and how high these are. */
  const keyOf = (made, width) => {
    const shown = made.legend ? made.current.legend.data.filter((name) => !made.hidden.has(name)) : [];
    const names = shown.slice(0, KEY.most).map(String);
    const room = width - 2 * MARGIN;
    let [rows, at] = [names.length > 0 ? 1 : 0, 0];
    for (const name of names) {
      const wide = KEY.mark + Math.min(widthOf(name, KEY.font), room - KEY.mark) + KEY.gap;
      if (at > 0 && at + wide > room) [rows, at] = [rows + 1, 0];
      at += wide;
    }
    return { names, left: shown.length - names.length, height: rows * KEY.row };
  };

  /** Of a chart, the option of its file and the size of that: under its title, with a key below it, as it is zoomed. */
  const exported = (made) => {
    const width = Math.max(made.place.clientWidth, LEAST_WIDTH);
    const key = keyOf(made, width);
    const notes = [made.says(made), key.left > 0 ? `${number(key.left)} more series are not in the key` : ""].filter(Boolean).join("\n");
    const room = width - 2 * MARGIN;
    const [heading, note] = [inRows(made.title, HEADING.font, room), notes ? inRows(notes, NOTE.font, room) : []];
    const above = MARGIN + HEADING.row * heading.length + (notes ? 6 + NOTE.row * note.length : 0);
    const below = key.height ? key.height + 8 : 0;
    const option = made.instance.getOption();
    const grids = option.grid.map((grid) => ({ ...grid, top: grid.top + above, bottom: grid.bottom + below }));
    const title = {
      text: heading.join("\n"), subtext: note.join("\n"), left: MARGIN, top: MARGIN, padding: 0, itemGap: 6,
      textStyle: { color: ink("ink"), fontSize: 15, fontWeight: "bold", lineHeight: HEADING.row },
      subtextStyle: { color: ink("faint"), fontSize: 12, lineHeight: NOTE.row },
    };
    // An area has no line that could stand in the key; a name that is wider than the paper is cut.
    const keyed = (name) => ({
      name, icon: made.current.series.find((s) => String(s.name) === name).areaStyle && "roundRect",
      textStyle: widthOf(name, KEY.font) > room - KEY.mark ? { width: room - KEY.mark, overflow: "truncate" } : {},
    });
    const legend = {
      show: key.names.length > 0, type: "plain", data: key.names.map(keyed), left: MARGIN, right: MARGIN, bottom: 4, padding: 0, itemWidth: 22, itemHeight: 10,
      itemGap: KEY.gap, selected: option.legend[0].selected, selectedMode: false, formatter: drawable,
      textStyle: { color: ink("ink"), fontSize: 12, lineHeight: KEY.row - KEY.gap },
    };
    // A file is drawn at once, however much it holds.
    const series = option.series.map((s) => ({ ...s, progressive: 0 }));
    return {
      width, height: made.place.clientHeight + above + below,
      option: { ...option, grid: grids, series, title, legend, animation: false, backgroundColor: ink("paper") },
    };
  };

  /** Draws a file, and gives what `take` makes of it. */
  const drawFile = ({ width, height, option }, how, take) => {
    const plain = echarts.init(element("div"), null, { width, height, ...how });
    plain.setOption(option);
    const taken = take(plain);
    plain.dispose();
    return taken;
  };

  /** The chart as a file of its own, with the series that are shown. */
  const svg = (made) => drawFile(exported(made), { renderer: "svg", ssr: true }, (plain) => plain.renderToSVGString());
  const png = (made) => drawFile(exported(made), { renderer: "canvas", devicePixelRatio: 2 },
    (plain) => plain.getDataURL({ pixelRatio: 2, backgroundColor: ink("paper") }));

  /**
   * A chart. `option(made)` gives an option of ECharts, or nothing where there is nothing to draw, and is asked again when the theme or
   * the data change; `zoom` may be "x", "y" or "xy"; `log` adds a button for a logarithmic axis, of which `made.log` tells. Series of
   * one name share a button of the legend; one that is `silent` belongs to another of its name. `size()` is the height in pixels. One
   * that is `lazy` is drawn when those in view are, and `settled` tells when; `drawn` hears of it each time. `about` is words below the
   * title, or gives them for the chart as it is drawn; `says(made)` gives what its file says below the title, which is else around it.
   */
  const chart = (parent, given) => {
    const { id, title, about, height = 320, size, option, zoom = "x", legend = true, log = false, lazy = false, drawn } = given;
    const says = given.says ?? (() => document.title);
    const place = element("div", { class: "chart", style: `height:${height}px`, tabindex: "0", role: "img", "aria-label": title });
    const keys = element("div", { class: "legend", role: "group", "aria-label": `Series of ${title}` });
    const status = element("span", { class: "unseen", role: "status" });
    const words = element("small");
    const made = {
      id, title, place, keys, status, words, about, says, hidden: new Set(), instance: undefined, option, size, zoom, legend, log: false,
      current: undefined, drawn,
    };
    const tool = (text, label, onclick, more = {}) =>
      element("button", { type: "button", "aria-label": `${title}: ${label}`, onclick, ...more }, text);
    const file = (kind, href) => tool(kind, `download as ${kind}`, () => upToDate(made) && download(`${id}.${kind.toLowerCase()}`, href()));
    const tools = element("span", { class: "tools" },
      ...(log ? [tool("Log", "logarithmic axis", (event) => {
        made.log = !made.log;
        event.currentTarget.setAttribute("aria-pressed", String(made.log));
        draw(made);
      }, { "aria-pressed": "false" })] : []),
      ...(zoom ? [tool("Whole", "whole", () => unzoom(made))] : []),
      file("SVG", () => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg(made))}`),
      file("PNG", () => png(made)));
    const caption = element("figcaption", {}, element("span", {}, title), tools, words);
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
    made.words.textContent = (typeof made.about === "function" ? made.about(made) : made.about) ?? "";
    made.words.hidden = made.words.textContent === "";
    made.drawn?.();
  };

  const drawOption = (made, asked) => {
    if (made.size) made.place.style.height = `${made.size()}px`;
    const option = complete(asked);
    // A finger scrolls the page.
    const drags = !matchMedia("(pointer: coarse)").matches;
    const inside = { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: drags, preventDefaultMouseMove: drags };
    const zoomed = ["x", "y"].filter((axis) => made.zoom && made.zoom.includes(axis));
    option.dataZoom = option.dataZoom ?? zoomed.map((axis) => ({ ...inside, [`${axis}AxisIndex`]: "all" }));
    // All names: what is set is merged with what was, so that a name that is left out stays hidden.
    option.legend.selected = Object.fromEntries(option.legend.data.map((name) => [name, !made.hidden.has(name)]));
    made.instance ??= echarts.init(made.place);
    // A tip that is shown is brought up to date after drawing, which fails where its series is gone.
    const names = ({ series }) => series.map((s) => `${s.type} ${s.name}`).join("\n");
    if (made.current && names(made.current) !== names(option)) made.instance.dispatchAction({ type: "hideTip" });
    if (!fitsPlace(made)) made.instance.resize();
    made.instance.setOption(option, { replaceMerge: ["series"] });
    made.current = option;
    fillLegend(made);
  };

  const colorOf = (made, name) => {
    const first = made.current.series.find((s) => s.name === name);
    return first?.itemStyle?.color ?? first?.lineStyle?.color ?? first?.color ?? colors[made.current.legend.data.indexOf(name) % colors.length];
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

  /** Where the keyboard is after a step to another point, or to the series before or after; none where no series is shown. */
  const stepped = (made, along, across) => {
    const all = made.current.series;
    const shown = [...all.keys()].filter((k) => !all[k].silent && all[k].data?.length > 0 && !made.hidden.has(all[k].name));
    if (shown.length === 0) return undefined;
    const before = shown.indexOf(made.on?.series);
    const begins = before < 0;
    const series = shown[begins ? 0 : Math.min(Math.max(before + across, 0), shown.length - 1)];
    const point = begins ? 0 : made.on.point + along;
    return { series, point: Math.min(Math.max(point, 0), all[series].data.length - 1) };
  };

  /** Arrow keys move from point to point and from series to series, and say what the mouse would; + and - zoom, Escape lets go. */
  const walk = (made, event) => {
    if (!made.current) return;
    const [along, across] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [];
    const next = along === undefined ? undefined : stepped(made, along, across);
    if (next) {
      made.on = next;
      made.instance.dispatchAction({ type: "showTip", seriesIndex: next.series, dataIndex: next.point });
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
  };

  const system = matchMedia("(prefers-color-scheme: dark)");
  // A notebook has a theme of its own, and the page in a frame: what is behind the frame says which.
  const frame = window.frameElement;
  const isDark = () => {
    for (let at = frame; at; at = at.parentElement) {
      const [red, green, blue, opacity = 1] = getComputedStyle(at).backgroundColor.match(/[\d.]+/g).map(Number);
      if (opacity > 0.5) return 0.3 * red + 0.6 * green + 0.1 * blue < 128;
    }
    return system.matches;
  };
  const follow = () => setTheme(isDark() ? "dark" : "light");
  follow();
  system.addEventListener("change", follow);
  if (frame) new MutationObserver(follow).observe(frame.ownerDocument.body, { attributes: true });
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", () => setTheme(dark() ? "light" : "dark"));
  // Paper is white, and nothing on it can be unfolded.
  let before;
  addEventListener("beforeprint", () => {
    before ??= { theme: root.dataset.theme, closed: [...main.querySelectorAll("details:not([open])")] };
    before.closed.forEach((details) => { details.open = true; });
    setTheme("light");
    [...stale].forEach(draw);
  });
  addEventListener("afterprint", () => {
    before?.closed.forEach((details) => { details.open = false; });
    if (before) setTheme(before.theme);
    before = undefined;
  });

  return { data, main, colors, charts, element, section, chart, table, tip, number, bytes, drawable, ink, dark, settled, exported, svg, png };
})();
