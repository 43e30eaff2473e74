"use strict";
// What a page shows where the pointer or the focus is.
const planTip = (() => {
  const box = page.element("div", { id: "tip", role: "tooltip", hidden: "" });
  document.body.append(box);

  let shown;

  const show = (target, lines) => {
    box.replaceChildren(...lines.filter(Boolean).map((line) => page.element("div", {}, line)));
    box.hidden = false;
    const at = target.getBoundingClientRect();
    shown = { target, at };
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + Math.min(at.width / 2, 120) - width / 2), innerWidth - width - 8);
    // Below what it is about, or above where there is no room.
    const below = at.bottom + 6;
    const top = below + height + 8 < innerHeight ? below : Math.max(8, at.top - height - 6);
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${top}px`;
  };
  const hide = () => { box.hidden = true; };

  /** Shows lines while the pointer or the focus is on an element; `lines()` is asked each time. */
  const on = (target, lines) => {
    const open = () => show(target, lines());
    for (const [event, does] of [["pointerenter", open], ["focus", open], ["pointerleave", hide], ["blur", hide]]) {
      target.addEventListener(event, does);
    }
  };
  // What moves away from under the pointer is not what the pointer is on.
  const moved = () => {
    const now = shown?.target.getBoundingClientRect();
    if (now && (now.top !== shown.at.top || now.left !== shown.at.left)) hide();
  };
  addEventListener("scroll", moved, { passive: true, capture: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  return { on, show, hide };
})();

// A value on the mesh: a cell for each device, and in it the outline of the whole value with what the device holds of it.
const planMesh = (() => {
  const CELL = 40;
  const STRIP = 6;
  const GAP = 7;
  const { element } = page;

  const drawn = (tag, attributes = {}, ...children) => {
    const made = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  const range = ([from, to]) => (from === to ? "nothing" : `${from}..${to}`);

  /** A value's dims: names, sizes and parts. */
  const dimsOf = (layout, type) => type.dims.map((name, k) => ({ name: layout.texts[name], ...layout.extents[type.extents[k]] }));

  /** `f32[batch 50, hidden 256]`: what the device with the largest shards holds. */
  const shape = (layout, type) => {
    const dims = dimsOf(layout, type).map((d) => `${d.name} ${d.lengths[1].toLocaleString("en-US")}`);
    return dims.length ? `${type.dtype}[${dims.join(", ")}]` : `${type.dtype} scalar`;
  };

  /** The devices that are drawn, by rank: their coordinates, and the places of these among the drawn ones. */
  const devices = (layout) => layout.shown.reduce(
    (all, positions) => all.flatMap((d) => positions.map((p, k) => ({ coords: [...d.coords, p], at: [...d.at, k] }))),
    [{ coords: [], at: [] }],
  );

  /** Which of a dim's parts a device has. */
  const part = (layout, dim, device) => dim.axes.reduce((n, axis) => n * layout.shown[axis].length + device.at[axis], 0);

  const named = (layout, device) => layout.mesh.map(([axis], k) => `${axis}=${device.coords[k]}`).join(", ") || "the device";

  const rank = (layout, device) => layout.mesh.reduce((n, [, size], k) => n * size + device.coords[k], 0);

  /** What a device holds, in words. */
  const told = (layout, type, device) => {
    const dims = dimsOf(layout, type);
    const lines = [`${named(layout, device)} (rank ${rank(layout, device)})`];
    for (const d of dims) {
      const held = d.ranges[part(layout, d, device)];
      const own = d.own?.[part(layout, d, device)];
      const halo = own && range(own) !== range(held) ? `, its own shard is ${range(own)}` : "";
      lines.push(`${d.name} ${range(held)} of ${d.size}${halo}`);
    }
    if (!dims.length) lines.push("a scalar");
    for (const [axis, monoid] of type.partial ?? []) lines.push(`a partial ${monoid}: the others along ${layout.mesh[axis][0]} hold the rest`);
    return lines;
  };

  /** The dims that a cell shows down and across, and those that have strips below it: split ones first, then the longest. */
  const choose = (dims) => {
    const order = dims.map((d, k) => k).sort((a, b) =>
      (dims[b].axes.length > 0) - (dims[a].axes.length > 0)
      || (dims[a].axes.length > 0 ? a - b : dims[b].size - dims[a].size || a - b));
    const two = order.slice(0, 2).sort((a, b) => a - b);
    const strips = order.slice(2).filter((k) => dims[k].axes.length > 0);
    return { down: two.length > 1 ? two[0] : undefined, across: two.at(-1), strips };
  };

  /** A color for each distinct shard: devices of one color hold the same. */
  const coloring = (layout, dims, all) => {
    const key = (device) => dims.map((d) => range(d.ranges[part(layout, d, device)])).join();
    const distinct = [...new Set(all.map(key))];
    const color = (n) => (distinct.length <= page.colors.length ? page.colors[n] : `hsl(${Math.round((300 * n) / distinct.length)} 55% 50%)`);
    return (device) => color(distinct.indexOf(key(device)));
  };

  /** Where a part begins and how long it is, in pixels; what is there can be seen. */
  const pixels = ([from, to], size, length) => {
    if (from === to) return [0, 0];
    const long = Math.max(3, ((to - from) / Math.max(size, 1)) * length);
    return [Math.min((from / Math.max(size, 1)) * length, length - long), long];
  };

  const shared = (a, b) => [Math.max(a[0], b[0]), Math.max(Math.max(a[0], b[0]), Math.min(a[1], b[1]))];

  const rectangle = (held, dims, { down, across }, look) => {
    const along = (k) => (k === undefined ? [0, CELL] : pixels(held[k], dims[k].size, CELL));
    const [x, width] = along(across);
    const [y, height] = along(down);
    return drawn("rect", { x, y, width: height ? width : 0, height: width ? height : 0, ...look });
  };

  const cell = (layout, type, dims, chosen, color, device) => {
    const held = dims.map((d) => d.ranges[part(layout, d, device)]);
    const own = dims.map((d, k) => (d.own ? shared(d.own[part(layout, d, device)], held[k]) : held[k]));
    const group = drawn("g", { role: "img", tabindex: "-1", class: "device", "aria-label": told(layout, type, device).join("; ") });
    group.append(drawn("rect", { width: CELL, height: CELL, class: "whole" }));
    if (dims.some((d) => d.own)) group.append(rectangle(held, dims, chosen, { fill: color, opacity: 0.4 }));
    group.append(rectangle(own, dims, chosen, { fill: color }));
    if (type.partial) group.append(rectangle(held, dims, chosen, { fill: "url(#partial)" }));
    chosen.strips.forEach((k, n) => {
      const [x, width] = pixels(held[k], dims[k].size, CELL);
      const y = CELL + 3 + n * (STRIP + 2);
      group.append(drawn("rect", { y, width: CELL, height: STRIP, class: "whole" }), drawn("rect", { x, y, width, height: STRIP, fill: color }));
    });
    planTip.on(group, () => told(layout, type, device));
    return group;
  };

  /** Offsets of so many things one after the other; where positions are left out there is more room. */
  const offsets = (positions, length, gap) => {
    let at = 0;
    const starts = positions.map((p, k) => {
      if (k > 0) at += length + gap + (p > positions[k - 1] + 1 ? 14 : 0);
      return at;
    });
    return { starts, length: at + length, skips: positions.flatMap((p, k) => (k > 0 && p > positions[k - 1] + 1 ? [k] : [])) };
  };

  /** The two minor axes as a grid with its headings. */
  const grid = (layout, height) => {
    const count = layout.mesh.length;
    const [row, column] = [count - 2, count - 1];
    const across = offsets(layout.shown[column] ?? [0], CELL, GAP);
    const down = offsets(layout.shown[row] ?? [0], height, GAP);
    const [left, top] = [row >= 0 ? 40 : 4, column >= 0 ? 34 : 4];
    const headings = () => {
      const made = drawn("g", { class: "headings" });
      const text = (x, y, words, more = {}) => made.append(drawn("text", { x, y, ...more }, words));
      if (column >= 0) {
        text(left, 12, `${layout.mesh[column][0]} →`, { class: "axis" });
        layout.shown[column].forEach((p, k) => text(left + across.starts[k] + CELL / 2, 28, String(p), { "text-anchor": "middle" }));
        across.skips.forEach((k) => text(left + across.starts[k] - (GAP + 14) / 2, top + height / 2, "⋯", { "text-anchor": "middle" }));
      }
      if (row >= 0) {
        const y = top + down.length / 2;
        text(10, y, `← ${layout.mesh[row][0]}`, { class: "axis", "text-anchor": "middle", transform: `rotate(-90 10 ${y})` });
        layout.shown[row].forEach((p, k) => text(left - 6, top + down.starts[k] + CELL / 2 + 4, String(p), { "text-anchor": "end" }));
        down.skips.forEach((k) => text(left - 6, top + down.starts[k] - (GAP + 14) / 2 + 3, "⋮", { "text-anchor": "end" }));
      }
      return made;
    };
    const place = (at) => [left + (column >= 0 ? across.starts[at[column]] : 0), top + (row >= 0 ? down.starts[at[row]] : 0)];
    // A name may be longer than its axis.
    const wide = column >= 0 ? 7 * (layout.mesh[column][0].length + 2) : 0;
    const high = row >= 0 ? 7 * (layout.mesh[row][0].length + 2) : 0;
    return { width: left + Math.max(across.length, wide) + 4, height: top + Math.max(down.length, high) + 4, headings, place };
  };

  /** The major axes: blocks beside and below each other, each with its coordinates above it. */
  const blocks = (layout, inner) => {
    const outer = layout.mesh.length - 2;
    if (outer <= 0) return { width: inner.width, height: inner.height, all: [{ x: 0, y: 0, at: [] }] };
    let [width, height] = [inner.width, inner.height + 18];
    let all = [{ x: 0, y: 0, at: [] }];
    for (let axis = outer - 1; axis >= 0; axis -= 1) {
      const across = (outer - 1 - axis) % 2 === 0;
      const along = offsets(layout.shown[axis], across ? width : height, 14);
      const moved = (k, b) => ({ x: b.x + (across ? along.starts[k] : 0), y: b.y + (across ? 0 : along.starts[k]), at: [k, ...b.at] });
      all = layout.shown[axis].flatMap((_, k) => all.map((b) => moved(k, b)));
      if (across) width = along.length; else height = along.length;
    }
    return { width, height, all };
  };

  const pattern = () => {
    const look = { id: "partial", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
    return drawn("defs", {}, drawn("pattern", look, drawn("rect", { width: 2.5, height: 6, class: "hatch" })));
  };

  /** Arrow keys go from device to device. */
  const walk = (cells, columns) => (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    const now = cells.indexOf(document.activeElement);
    if (step === undefined || now < 0) return;
    const next = cells[now + step];
    if (next) {
      cells[now].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    }
    event.preventDefault();
  };

  const picture = (layout, type) => {
    const dims = dimsOf(layout, type);
    const chosen = choose(dims);
    const inner = grid(layout, CELL + chosen.strips.length * (STRIP + 2) + (chosen.strips.length ? 3 : 0));
    const outer = blocks(layout, inner);
    const all = devices(layout);
    const color = coloring(layout, dims, all);
    const names = layout.mesh.slice(0, -2).map(([name]) => name);
    const size = { viewBox: `0 0 ${outer.width} ${outer.height}`, width: outer.width, height: outer.height };
    const root = drawn("svg", { ...size, role: "group", "aria-label": "The devices of the mesh" });
    root.append(pattern());
    const title = names.length > 0 ? 18 : 0;
    const cells = [];
    for (const b of outer.all) {
      const group = drawn("g", { transform: `translate(${b.x} ${b.y})` });
      if (title) group.append(drawn("text", { x: 4, y: 13, class: "block" }, names.map((n, k) => `${n}=${layout.shown[k][b.at[k]]}`).join(", ")));
      const within = drawn("g", { transform: `translate(0 ${title})` }, inner.headings());
      for (const device of all.filter((d) => b.at.every((k, axis) => d.at[axis] === k))) {
        const [x, y] = inner.place(device.at);
        const made = cell(layout, type, dims, chosen, color(device), device);
        made.setAttribute("transform", `translate(${x} ${y})`);
        cells.push(made);
        within.append(made);
      }
      group.append(within);
      root.append(group);
    }
    cells[0]?.setAttribute("tabindex", "0");
    root.addEventListener("keydown", walk(cells, layout.shown.at(-1)?.length ?? 1));
    return { root, dims, chosen };
  };

  /** How a dim is split, in words. */
  const split = (layout, d) => {
    if (!d.axes.length) return "whole";
    const [least, most] = d.lengths;
    const over = d.axes.map((a) => layout.mesh[a][0]).join(", then ");
    const sizes = least === most ? `${most} each` : `${least} to ${most} each: uneven, nothing is padded`;
    return `${d.own ? "a window of the shard" : "split"} over ${over}, ${sizes}`;
  };

  const facts = (layout, type, dims, chosen) => {
    const drawnAs = (k) => (k === chosen.across ? "→ " : k === chosen.down ? "↓ " : chosen.strips.includes(k) ? "▬ " : "");
    const rows = dims.map((d, k) => element("tr", {}, element("th", { scope: "row" }, `${drawnAs(k)}${d.name}`),
      element("td", {}, d.size.toLocaleString("en-US")), element("td", { class: "text" }, split(layout, d))));
    const used = new Set([...dims.flatMap((d) => d.axes), ...(type.partial ?? []).map(([a]) => a)]);
    const copies = layout.mesh.filter(([, size], a) => !used.has(a) && size > 1).map(([name]) => name);
    const lines = [];
    if (type.partial) lines.push(...type.partial.map(([a, m]) => `Hatched: a partial ${m} over ${layout.mesh[a][0]}, not yet reduced.`));
    if (dims.some((d) => d.own)) lines.push("Lighter: what is held beyond the device's own shard.");
    if (copies.length) lines.push(`The same along ${copies.join(" and ")}: devices of one color hold equal shards.`);
    return element("div", { class: "facts" },
      rows.length ? element("table", { class: "dims" }, element("tbody", {}, ...rows)) : "A scalar.",
      ...lines.map((line) => element("p", {}, line)));
  };

  /** How many devices are drawn, where these are not all. */
  const left = (layout) => {
    const number = (n) => n.toLocaleString("en-US");
    const cut = layout.mesh.map(([name, size], a) => [layout.shown[a].length, size, name]).filter(([drawn, size]) => drawn < size);
    const words = cut.map(([drawn, size, name]) => `${drawn} of ${number(size)} along ${name}`).join(", ");
    return cut.length ? `Of ${number(layout.devices)} devices, ${layout.shown.reduce((n, s) => n * s.length, 1)} are drawn: ${words}.` : "";
  };

  /** A value as a figure, under what it is called. */
  const figure = (layout, title, type) => {
    const { root, dims, chosen } = picture(layout, type);
    const note = left(layout);
    return element("figure", { class: "placed" },
      element("figcaption", {}, element("span", {}, title), element("small", {}, `${shape(layout, type)}, ${page.bytes(type.bytes)} on a device`)),
      element("div", { class: "mesh" }, root), facts(layout, type, dims, chosen), ...(note ? [element("p", { class: "about" }, note)] : []));
  };

  return { figure, shape };
})();
