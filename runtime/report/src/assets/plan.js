"use strict";
// The plan of a program under one layout or several: its steps, what is where, memory and time.
(() => {
  const { data, element, section, bytes, number } = page;
  const { dashed, paths, time } = planCharts;
  const PHASE_NAMES = { forward: "Forward", backward: "Backward", update: "Update" };
  const SIGNS = { appears: "+", vanishes: "−", resized: "~" };
  const SHOWN_VALUES = 14;
  const FOLDED = 12;

  const state = {
    at: 0,
    selected: undefined,
    part: 0,
    heldAtPeak: true,
    launchesByBytes: false,
    allLaunches: false,
    layout: () => data.layouts[state.at],
    // What the layout that is shown is compared with: the first, or of the first the second.
    other: () => data.layouts[state.at === 0 ? 1 : 0],
    ran: () => planCharts.estimated(state.layout()),
  };

  const flops = (count) => {
    const units = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"];
    let unit = 0;
    while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
    return `${Number(count.toPrecision(4))} ${units[unit]}`;
  };
  const signed = (value, show) => (value === 0 ? "=" : `${value > 0 ? "+" : "−"}${show(Math.abs(value))}`);
  const count = (n, what, many = `${what}s`) => `${number(n)} ${n === 1 ? what : many}`;
  const sum = (all) => all.reduce((a, b) => a + b, 0);
  const meshText = (layout) => layout.mesh.map(([name, size]) => `${name}=${size}`).join(" x ") || "one device";
  const overText = (layout, c) => c.axes.map((a) => layout.mesh[a][0]).join(", ");
  const lineText = (layout, origin) => {
    const line = layout.lines[origin?.line];
    return line && `${line.file}:${line.line}`;
  };
  const ruleText = (layout, at) => {
    const { number, line, text } = layout.rules[at];
    return `${number}: ${text} (line ${line} of the layout)`;
  };

  /** What differs between the layout that is shown and the other one, by the value and the collective that differ. */
  const differences = () => {
    const to = state.at === 0 ? 1 : state.at;
    return data.differences.find((d) => d.to === to)?.changes ?? [];
  };
  const keyOf = (value, op, axes) => [value, op, ...axes].join("\n");
  const changesByKey = () => new Map(differences().map((d) => [keyOf(d.value, d.op, d.axes), d]));
  /** How a collective differs from what the other layout has. */
  const changesOf = (layout, step, known) => {
    const axes = step.collective.axes.map((a) => layout.mesh[a][0]);
    return step.of.map((o) => known.get(keyOf(layout.texts[o.path], step.op, axes)));
  };
  const changeText = (change) => {
    const other = state.other().name;
    if (change.change === "resized") {
      const [here, there] = state.at === 0 ? [change.bytes_before, change.bytes_after] : [change.bytes_after, change.bytes_before];
      return `${signed(here - there, bytes)} against ${other}`;
    }
    return `${other} has none`;
  };

  // ---- What the layouts cost.

  const totals = [
    ["compute", (l) => l.per_device.flops, flops],
    ["collectives", (l) => sum(l.totals.map((t) => t.count)), number],
    ["moved by collectives", (l) => l.per_device.collective_bytes, bytes],
    ["peak memory", (l) => l.per_device.peak_bytes, bytes],
    ["parameters", (l) => l.per_device.parameter_bytes, bytes],
    ["optimizer state", (l) => l.per_device.optimizer_state_bytes, bytes],
    ["copies of parameters", (l) => l.per_device.working_copy_bytes, bytes],
    ["gradients", (l) => l.per_device.gradient_bytes, bytes],
    ["residuals", (l) => l.per_device.residual_bytes, bytes],
    ["communication", (l) => l.per_device.communication_bytes, bytes],
    ["workspace", (l) => l.per_device.workspace_bytes, bytes],
  ];

  const switcher = (parent) => {
    if (data.layouts.length < 2) return;
    const choice = (layout, at) => {
      const input = element("input", { type: "radio", name: "layout", value: at, onchange: () => choose(at) });
      input.checked = at === state.at;
      return element("label", {}, input, element("span", {}, layout.name));
    };
    parent.append(element("fieldset", { class: "switch" }, element("legend", {}, "Layout"), ...data.layouts.map(choice)));
  };

  const summary = (place) => {
    const layouts = data.layouts;
    const two = layouts.length === 2;
    const now = (k) => (k === state.at ? "now" : "");
    const head = element("tr", {}, element("td"), ...layouts.map((l, k) => element("th", { scope: "col", class: now(k) }, l.name)),
      ...(two ? [element("th", { scope: "col" }, "difference")] : []));
    const mesh = element("tr", {}, element("th", { scope: "row" }, "mesh"), ...layouts.map((l, k) => element("td", { class: now(k) }, meshText(l))),
      ...(two ? [element("td")] : []));
    const row = ([title, of, show]) => element("tr", {}, element("th", { scope: "row" }, title),
      ...layouts.map((l, k) => element("td", { class: now(k) }, show(of(l)))),
      ...(two ? [element("td", { class: "differs" }, signed(of(layouts[1]) - of(layouts[0]), show))] : []));
    place.replaceChildren(element("div", { class: "table totals", tabindex: "0", id: "table-totals" },
      element("table", {}, element("thead", {}, head), element("tbody", {}, mesh, ...totals.map(row)))));
  };

  const differing = () => {
    if (data.layouts.length < 2) return;
    const place = element("div");
    const made = section("What differs", undefined);
    made.append(place);
    made.id = "differences";
    return () => {
      const changes = differences();
      const to = data.layouts[state.at === 0 ? 1 : state.at];
      const words = { appears: "appear", vanishes: "vanish", resized: "move other bytes" };
      const counts = Object.keys(words).map((c) => [changes.filter((d) => d.change === c).length, words[c]]).filter(([n]) => n > 0);
      const told = counts.map(([n, w]) => `${count(n, "value")} ${w}`).join(", ");
      const about = counts.length ? `From ${data.layouts[0].name} to ${to.name}: collectives of ${told}.`
        : `${data.layouts[0].name} and ${to.name} have the same collectives.`;
      place.replaceChildren(element("p", { class: "about" }, about));
      if (!changes.length) return;
      const columns = [
        { name: "change", title: "change", text: true, show: (v) => `${SIGNS[v]} ${v}` }, { name: "phase", title: "part", text: true },
        { name: "value", title: "value", text: true },
        { name: "collective", title: "collective", text: true }, { name: "before", title: data.layouts[0].name, show: (v) => (v === null ? "-" : number(v)) },
        { name: "after", title: to.name, show: (v) => (v === null ? "-" : number(v)) }, { name: "because", title: "because", text: true },
      ];
      const bytesOr = (v, missing) => (missing ? null : v);
      const rows = changes.map((d) => [d.change, d.phase, d.value, `${dashed(d.op)} ${d.axes.join(",")}`,
        bytesOr(d.bytes_before, d.change === "appears"), bytesOr(d.bytes_after, d.change === "vanishes"), d.because]);
      page.table(place, { id: "differences", columns, rows });
    };
  };

  // ---- The list of steps.

  const chip = (layout, step) => element("span", { class: "chip", style: `--mark:${planCharts.COLLECTIVES[step.op]}` },
    element("i"), `${dashed(step.op)} ${overText(layout, step.collective)}`);

  const stepLines = (layout, step, at) => {
    const c = step.collective;
    const origin = step.of[0];
    const because = [...new Set(step.of.map((o) => layout.texts[o.because]).filter(Boolean))];
    const rules = [...new Set(step.of.flatMap((o) => o.rules ?? []))];
    const held = sum(step.writes.map(([, type]) => layout.types[type].bytes));
    return [
      `step ${at}: ${dashed(step.op)}${c ? ` over ${overText(layout, c)}` : ""}`,
      c || held ? `${number(c ? sum(c.bytes) : held)} bytes on each device${c && step.times > 1 ? `, ${number(step.times)} times` : ""}` : "",
      lineText(layout, origin) && `line ${lineText(layout, origin)}`,
      because.length ? `because ${because.slice(0, 3).join("; ")}` : "",
      rules.length ? `rule ${rules.slice(0, 2).map((r) => ruleText(layout, r)).join("; ")}` : "",
    ];
  };

  const stepRow = (layout, at, known) => {
    const step = layout.steps[at];
    const c = step.collective;
    const started = step.started !== undefined ? layout.steps[step.started] : undefined;
    const changes = c ? changesOf(layout, step, known).filter(Boolean) : [];
    const held = c ? sum(c.bytes) : sum(step.writes.map(([, type]) => layout.types[type].bytes));
    const what = c ? chip(layout, step) : element("span", { class: "op" }, started ? `wait for ${dashed(started.op)}` : dashed(step.op));
    const sign = changes.every((d) => d.change === "resized") ? "~" : "only here";
    const row = element("div", { class: "row" }, element("span", { class: "path" }, paths(layout, step)), what,
      ...(changes.length ? [element("span", { class: "mark", title: changeText(changes[0]) }, sign)] : []),
      element("span", { class: "bytes" }, held ? bytes(held) : ""));
    const kind = c ? "collective" : started ? "wait" : "compute";
    const op = `${dashed(step.op)}${c ? ` over ${overText(layout, c)}` : ""}`;
    const label = [paths(layout, step), op, bytes(held), ...changes.slice(0, 1).map(changeText)].join(", ");
    const text = `${step.of.map((o) => layout.texts[o.path]).join(" ")} ${dashed(step.op)}`.toLowerCase();
    return { kind, row, label, at, text, lines: () => stepLines(layout, step, at) };
  };

  /** What a group says of the steps in it: how many there are, and what their collectives move. */
  const groupSums = (layout, from, to, outer) => {
    const steps = layout.steps.slice(from, to);
    const moving = steps.filter((s) => s.collective);
    const often = (s) => s.times / outer;
    const moved = sum(moving.map((s) => sum(s.collective.bytes) * often(s)));
    const found = sum(moving.map(often));
    return `${count(steps.length, "step")}${moving.length ? `, ${bytes(moved)} in ${count(found, "collective")}` : ""}`;
  };

  /** A row of the list: a name, what there is to say of it, and where wanted bytes. */
  const rowOf = (name, about, held) => element("div", { class: "row" }, element("span", { class: "path" }, name), element("span", { class: "op" }, about),
    ...(held === undefined ? [] : [element("span", { class: "bytes" }, bytes(held))]));

  /** The steps as a tree: parts of the step, loops in them, steps. */
  const treeOf = (layout) => {
    const known = changesByKey();
    const begins = new Map(layout.loops.map((l) => [l.begin, l]));
    const within = (from, to) => {
      const out = [];
      for (let at = from; at < to; at += 1) {
        const l = begins.get(at);
        if (!l) { out.push(stepRow(layout, at, known)); continue; }
        const times = layout.steps[at].times * l.iterations;
        const row = rowOf(`repeat ${l.dim} × ${number(l.iterations)}${l.reverse ? ", from the last" : ""}`, groupSums(layout, at + 1, l.end, times));
        const often = count(l.iterations, "iteration");
        const lines = () => [`steps ${at} to ${l.end}, ${often}${l.reverse ? " from the last to the first" : ""}`,
          `each: ${groupSums(layout, at + 1, l.end, times)}`];
        out.push({ kind: "loop", row, label: `loop over ${l.dim}, ${often}`, at, children: within(at + 1, l.end), folded: l.end - l.begin > FOLDED,
          text: l.dim.toLowerCase(), lines });
        at = l.end;
      }
      return out;
    };
    const parts = [];
    let from = 0;
    for (let at = 1; at <= layout.steps.length; at += 1) {
      // A part ends where the next begins; a loop is in one.
      const inLoop = layout.loops.some((l) => l.begin < at && at <= l.end);
      const outside = at === layout.steps.length || (!inLoop && layout.steps[at].phase !== layout.steps[from].phase);
      if (!outside) continue;
      const [name, sums] = [PHASE_NAMES[layout.steps[from].phase], groupSums(layout, from, at, 1)];
      parts.push({ kind: "part", row: rowOf(name, sums), label: `${name}: ${sums}`, children: within(from, at), text: "" });
      from = at;
    }
    return [heldFromStart(layout), ...parts];
  };

  /** What is there before the first step. */
  const heldFromStart = (layout) => {
    const written = new Set(layout.steps.flatMap((s) => s.writes.map(([buffer]) => buffer)));
    const rows = layout.buffers.flatMap(([path, type, kind, begin, end, size], buffer) => {
      if (written.has(buffer) || begin !== 0 || end === 0) return [];
      const placed = layout.types[type];
      const [name, what] = [layout.texts[path], data.kinds[kind]];
      return [{ kind: "held", row: rowOf(name, what, size), label: `${name}, ${what}, ${bytes(size)}`, buffer,
        text: `${name} ${what}`.toLowerCase(), lines: () => [name, planMesh.shape(layout, placed), `${number(size)} bytes on each device`] }];
    });
    const held = sum(rows.map((r) => layout.buffers[r.buffer][5]));
    const row = rowOf("Held from the start", `${count(rows.length, "value")}, ${bytes(held)}`);
    return { kind: "part", row, label: `Held from the start: ${count(rows.length, "value")}`, children: rows, folded: true, text: "" };
  };

  const list = { nodes: [], ordered: [], byItem: new Map() };

  const fold = (node, folded) => {
    node.item.setAttribute("aria-expanded", String(!folded));
  };

  const treeItem = (node, level) => {
    const attributes = { role: "treeitem", tabindex: "-1", "aria-level": level, "aria-label": node.label, class: node.kind };
    node.item = element("li", attributes, node.row);
    node.row.style.paddingInlineStart = `${(level - 1) * 14 + 6}px`;
    if (node.children) {
      const inner = element("ul", { role: "group" });
      node.children.forEach((child) => { child.parent = node; inner.append(treeItem(child, level + 1)); });
      node.item.append(inner);
      fold(node, node.folded);
      if (node.kind === "loop") node.item.setAttribute("aria-selected", "false");
    } else {
      node.item.setAttribute("aria-selected", "false");
    }
    list.nodes.push(node);
    return node.item;
  };

  const isShown = (node) => {
    if (node.item.hidden) return false;
    for (let up = node.parent; up; up = up.parent) {
      if (up.item.hidden || up.item.getAttribute("aria-expanded") === "false") return false;
    }
    return true;
  };

  const focusOn = (node) => {
    list.nodes.forEach((n) => n.item.setAttribute("tabindex", "-1"));
    node.item.setAttribute("tabindex", "0");
    node.item.focus({ preventScroll: true });
    reveal(node);
  };

  /** Scrolls the list, and only the list, to a row. */
  const reveal = (node) => {
    const around = node.item.closest(".steps");
    const [row, box] = [node.row.getBoundingClientRect(), around.getBoundingClientRect()];
    // The heading of the part stays above its rows.
    const above = row.top - box.top - 32;
    const below = row.bottom - box.bottom + 4;
    if (above < 0) around.scrollTop += above; else if (below > 0) around.scrollTop += below;
  };

  const treeKeys = (event) => {
    const now = list.byItem.get(document.activeElement);
    if (!now) return;
    const shown = list.ordered.filter(isShown);
    const at = shown.indexOf(now);
    const expanded = now.item.getAttribute("aria-expanded");
    const go = {
      ArrowDown: () => shown[at + 1], ArrowUp: () => shown[at - 1], Home: () => shown[0], End: () => shown.at(-1),
      ArrowRight: () => { if (expanded === "false") { fold(now, false); return now; } return expanded === "true" ? shown[at + 1] : undefined; },
      ArrowLeft: () => { if (expanded === "true") { fold(now, true); return now; } return now.parent; },
      Enter: () => { if (now.children) fold(now, expanded === "true"); return now; },
    }[event.key];
    if (!go) return;
    planTip.hide();
    event.preventDefault();
    const next = go();
    if (!next) return;
    focusOn(next);
    if (next.kind !== "part") select(next);
  };

  const nodeOf = (event) => list.byItem.get(event.target.closest(".row")?.parentElement);

  const treeClick = (event) => {
    const node = nodeOf(event);
    if (!node) return;
    if (node.children) fold(node, node.item.getAttribute("aria-expanded") === "true");
    focusOn(node);
    if (node.kind !== "part") select(node);
  };

  const treeHover = (event) => {
    const node = nodeOf(event);
    if (node) planTip.show(node.row, node.lines ? node.lines() : [node.label]); else planTip.hide();
  };

  const filterTree = (tree, words, movesOnly) => {
    const passes = (node) => {
      const own = words.every((w) => node.text.includes(w)) && (!movesOnly || node.kind === "collective");
      const shown = node.children ? node.children.map(passes).some(Boolean) : own;
      node.item.hidden = !shown;
      return shown;
    };
    const shown = tree.map(passes).some(Boolean);
    if (words.length || movesOnly) list.nodes.filter((n) => n.children && !n.item.hidden).forEach((n) => fold(n, false));
    else list.nodes.filter((n) => n.children).forEach((n) => fold(n, n.folded));
    return shown;
  };

  const stepList = (place) => {
    const layout = state.layout();
    const tree = treeOf(layout);
    list.nodes = [];
    const does = { onkeydown: treeKeys, onclick: treeClick, onpointerover: treeHover, onpointerleave: planTip.hide };
    const items = element("ul", { role: "tree", class: "steps", "aria-label": "Steps of the plan", ...does });
    tree.forEach((node) => items.append(treeItem(node, 1)));
    const flat = (nodes) => nodes.flatMap((n) => [n, ...flat(n.children ?? [])]);
    list.ordered = flat(tree);
    list.byItem = new Map(list.nodes.map((n) => [n.item, n]));
    list.ordered[0]?.item.setAttribute("tabindex", "0");
    const input = element("input", { type: "search", placeholder: "filter: words of a path or an op", "aria-label": "Filter steps" });
    const moves = element("input", { type: "checkbox", id: "moves-only" });
    const none = element("p", { class: "about", role: "status" });
    const filter = () => {
      none.textContent = filterTree(tree, input.value.toLowerCase().split(/\s+/).filter(Boolean), moves.checked) ? "" : "No step is like that.";
    };
    input.addEventListener("input", filter);
    moves.addEventListener("change", filter);
    place.replaceChildren(element("div", { class: "filter" }, input, element("label", { for: "moves-only" }, moves, " collectives only")), none, items);
  };

  // ---- What is selected.

  const select = (node) => {
    list.nodes.forEach((n) => { if (n.item.hasAttribute("aria-selected")) n.item.setAttribute("aria-selected", String(n === node)); });
    state.selected = node.at;
    state.part = 0;
    if (node.buffer !== undefined) heldDetail(node.buffer); else stepDetail();
    view.marks();
    if (!state.heldAtPeak) view.held();
  };

  const selectStep = (at) => {
    const node = list.ordered.find((n) => n.at === at);
    if (!node) return;
    for (let up = node.parent; up; up = up.parent) fold(up, false);
    list.nodes.forEach((n) => n.item.setAttribute("tabindex", n === node ? "0" : "-1"));
    reveal(node);
    select(node);
  };

  const heldDetail = (buffer) => {
    const layout = state.layout();
    const [path, type, kind] = layout.buffers[buffer];
    detail.replaceChildren(element("h3", {}, layout.texts[path]), element("p", { class: "about" }, `${data.kinds[kind]}, held from the start of the step`),
      element("div", { class: "figures" }, planMesh.figure(layout, layout.texts[path], layout.types[type])));
  };

  const fact = (name, ...text) => [element("dt", {}, name), element("dd", {}, ...text)];

  const exactly = (n) => (n < 1024 ? bytes(n) : `${number(n)} (${bytes(n)})`);

  const collectiveFacts = (layout, step, at) => {
    const c = step.collective;
    const known = changesByKey();
    const changes = changesOf(layout, step, known);
    const all = sum(c.bytes);
    const own = c.bytes[state.part];
    const groups = layout.devices / c.devices;
    const between = layout.steps.slice(at + 1, c.wait).filter((s) => !s.collective && s.started === undefined).length;
    const out = [];
    out.push(...fact("group", `${count(c.devices, "device")} along ${overText(layout, c)}${groups > 1 ? `, in each of ${count(groups, "group")}` : ""}`));
    const bucket = c.bytes.length > 1 ? `; ${bytes(all)} in the bucket` : "";
    out.push(...fact("bytes", `${exactly(own)} on each device${bucket}${step.times > 1 ? `, ${number(step.times)} times` : ""}`));
    out.push(...fact("on the wire", `at least ${bytes(Math.round(c.factor * all))} to or from each device`));
    if (c.monoid) out.push(...fact("reduces by", c.monoid));
    const timed = layout.estimate?.collectives.find(([step]) => step === at);
    if (timed) out.push(...fact("estimated", `${time(timed[1])} in a step, of which compute waits for ${time(timed[2])}`));
    const overlap = `starts at step ${at}, waited for at step ${c.wait}, ${count(between, "step")} of compute in between`;
    out.push(...fact("overlap", c.wait === at ? "none: waited for where it starts" : overlap));
    if (changes[state.part]) out.push(...fact("differs", element("strong", {}, changeText(changes[state.part]))));
    return out;
  };

  const stepFacts = (layout, step, at) => {
    const origin = step.of[state.part] ?? step.of[0];
    const out = [];
    const line = layout.lines[origin?.line];
    if (line) out.push(...fact("line", `${line.file}:${line.line} `, element("code", {}, line.text)));
    if (origin?.because !== undefined) out.push(...fact("because", layout.texts[origin.because]));
    for (const rule of origin?.rules ?? []) out.push(...fact("rule", element("code", {}, ruleText(layout, rule))));
    if (step.collective) out.push(...collectiveFacts(layout, step, at));
    if (step.started !== undefined) out.push(...fact("waits for", `the ${dashed(layout.steps[step.started].op)} that step ${step.started} started`));
    if (step.flops) out.push(...fact("computes", `${flops(step.flops)}${step.times > 1 ? `, ${number(step.times)} times` : ""}`));
    if (step.lag) out.push(...fact("lag", `${count(step.lag, "turn")} of the loop behind what runs ahead`));
    return out;
  };

  const partChoice = (layout, step, names) => {
    const options = names.map((name, k) => element("option", { value: k }, name));
    const taken = (event) => {
      state.part = Number(event.target.value);
      stepDetail();
      document.getElementById("part").focus();
    };
    const choice = element("select", { id: "part", onchange: taken }, ...options);
    choice.value = String(state.part);
    return element("p", {}, element("label", { for: "part" }, "value "), choice);
  };

  /** The operands of a step that are drawn: of those with a part for each result, both sides of the chosen one. */
  const operands = (layout, step) => {
    const named = ([buffer, type], side) => ({ title: `${side}: ${layout.texts[layout.buffers[buffer][0]] || "(unnamed)"}`, type: layout.types[type] });
    const paired = step.collective || ["repeat", "end_repeat"].includes(step.op);
    if (paired) return [step.reads[state.part], step.writes[state.part]].flatMap((o, k) => (o ? [named(o, k === 0 ? "before" : "after")] : []));
    if (step.started !== undefined) return step.reads.slice(state.part, state.part + 1).map((o) => named(o, "result"));
    return [...step.reads.map((o) => named(o, "reads")), ...step.writes.map((o) => named(o, "gives"))];
  };

  const stepDetail = () => {
    const layout = state.layout();
    const at = state.selected;
    const step = layout.steps[at];
    const paired = step.collective || step.started !== undefined || ["repeat", "end_repeat"].includes(step.op);
    const names = step.collective || step.started !== undefined
      ? step.of.map((o, k) => `${layout.texts[o.path]}${step.collective ? ` (${bytes(step.collective.bytes[k])})` : ""}`)
      : step.reads.map(([buffer]) => layout.texts[layout.buffers[buffer][0]] || "(unnamed)");
    const title = element("h3", {}, step.collective ? chip(layout, step) : dashed(step.op), ` ${paths(layout, step)}`);
    const all = operands(layout, step);
    // A fused step may read many; those beyond some are named alone.
    const most = paired ? 2 : 6;
    const rest = all.slice(most).map((o) => o.title);
    const often = step.times > 1 ? `, ${number(step.times)} times` : "";
    detail.replaceChildren(title, ...(paired && names.length > 1 ? [partChoice(layout, step, names)] : []),
      element("dl", {}, ...fact("step", `${at} of ${number(layout.steps.length)}, ${step.phase}${often}`), ...stepFacts(layout, step, at)),
      element("div", { class: "figures" }, ...all.slice(0, most).map((o) => planMesh.figure(layout, o.title, o.type))),
      ...(rest.length ? [element("p", { class: "about" }, `and ${rest.join(", ")}`)] : []));
  };

  // ---- Memory and time.

  const heldTable = (place) => {
    const layout = state.layout();
    const { total, peak } = planCharts.curve(layout, data.kinds);
    const at = state.heldAtPeak || state.selected === undefined ? peak : state.selected;
    const all = planCharts.heldAt(layout, at);
    const button = ([value, title]) => element("button", {
      type: "button", "aria-pressed": String(state.heldAtPeak === value), onclick: () => { state.heldAtPeak = value; view.held(); },
    }, title);
    const buttons = [[true, "At the peak"], [false, "At the selected step"]].map(button);
    const kind = (b) => [element("i", { class: "kind", style: `--mark:${planCharts.KINDS[b.kind]}` }), data.kinds[b.kind]];
    const share = (b) => `${(100 * b.bytes / Math.max(total[at], 1)).toFixed(1)} %`;
    const text = (...all) => element("td", { class: "text" }, ...all);
    const row = (b) => element("tr", {}, text(b.path || "(unnamed)"), text(...kind(b)), text(planMesh.shape(layout, b.type)),
      element("td", {}, bytes(b.bytes)), element("td", {}, share(b)));
    const rows = all.slice(0, SHOWN_VALUES).map(row);
    const titles = [["value", "text"], ["kind", "text"], ["on a device", "text"], ["bytes", ""], ["share", ""]];
    const head = element("tr", {}, ...titles.map(([t, c]) => element("th", { scope: "col", class: `plain ${c}` }, t)));
    const rest = all.length - rows.length;
    const others = sum(all.slice(SHOWN_VALUES).map((b) => b.bytes));
    place.replaceChildren(element("div", { class: "filter" }, element("strong", {}, `Largest of ${bytes(total[at])} at step ${at}`), ...buttons),
      element("div", { class: "table", tabindex: "0", id: "table-held" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))),
      ...(rest > 0 ? [element("p", { class: "about" }, `and ${count(rest, "smaller value")} of ${bytes(others)}`)] : []));
  };

  const ranText = () => {
    const { estimate: e, pipeline } = state.layout();
    const left = e.left_out ? ` Drawn is how it begins: ${count(e.left_out, "kernel or collective", "kernels and collectives")} more follow.` : "";
    const stage = pipeline ? " Drawn is a device of the first stage." : "";
    return `Nothing here is measured. On ${e.machine} a step takes ${time(e.seconds)} ${e.band}: compute waits for collectives for ${time(e.waited)} of it. `
      + `A device needs ${bytes(e.memory[0])} of its ${bytes(e.memory[1])}.${stage}${left}`;
  };

  /** What there is of times where no machine was named: how to name one. */
  const howToEstimate = () => {
    const quoted = (text) => (/^[\w./]+$/.test(text) ? text : `'${text}'`);
    const layouts = data.layouts.filter((l) => l.devices > 1).map((l) => ` --layout ${quoted(l.name)}`).join("");
    const mesh = state.layout().mesh.map(([name, size]) => `${name}=${size}`).join(",");
    const command = `meshwright explain MODEL${layouts}${mesh && ` --mesh ${mesh}`} --machine dgx-h100 --html plan.html`;
    return element("p", { class: "about" }, "Times are of a machine, and none was named. With ", element("code", {}, "--machine"),
      " the page has the estimated timeline of a device, and the time of each collective: ", element("code", {}, command), ". ",
      element("code", {}, "meshwright machines"), " lists those that ship.");
  };

  /** A click selects the step that is there. The instance that is drawn again and again is one. */
  const clicks = (chart, stepOf) => chart.instance.getZr().on("click", (event) => {
    const at = chart.instance.convertFromPixel({ gridIndex: 0 }, [event.offsetX, event.offsetY]);
    const step = at && stepOf(at);
    if (step !== undefined) selectStep(step);
  });

  const stepOfMemory = ([x]) => {
    const at = Math.round(x);
    return at >= 0 && at < state.layout().steps.length ? at : undefined;
  };

  const stepOfTime = ([x, lane]) => {
    const ran = state.ran();
    const factor = ran.drawn >= 1 ? 1 : ran.drawn >= 1e-3 ? 1e3 : 1e6;
    return ran.bars.find((b) => b.lane === Math.round(lane) && b.start * factor <= x && x <= b.end * factor)?.at;
  };

  // ---- What a device launches.

  const SHOWN_LAUNCHES = 400;

  const launchText = (layout, launch) => {
    const around = launch.kind === "loop" && layout.loops.find((l) => l.begin === launch.steps[0]);
    if (around) return `over ${around.dim}${around.reverse ? ", from the last" : ""}`;
    const names = [...new Set(launch.steps.flatMap((s) => layout.steps[s].of.map((o) => layout.texts[o.path])))].reverse();
    const rest = names.length - 2;
    return `${names.slice(0, 2).join(", ")}${rest > 0 ? ` and ${count(rest, "value")} more` : ""}`;
  };

  const launchTable = (place) => {
    const layout = state.layout();
    const { device, totals, launches } = layout.launches;
    const moved = (l) => l.times * (l.read + l.written);
    const all = state.launchesByBytes ? [...launches].filter((l) => l.kind !== "loop").sort((a, b) => moved(b) - moved(a)) : launches;
    const button = ([value, title]) => element("button", {
      type: "button", "aria-pressed": String(state.launchesByBytes === value),
      onclick: () => { state.launchesByBytes = value; view.launches(); },
    }, title);
    const buttons = [[false, "In order"], [true, "By bytes"]].map(button);
    const text = (...of) => element("td", { class: "text" }, ...of);
    const row = (l) => {
      const step = l.steps.at(-1);
      const indent = state.launchesByBytes ? "" : "\u2003".repeat(l.depth);
      const link = element("button", { type: "button", class: "step", onclick: () => selectStep(step) }, `${indent}${l.kind.replaceAll("_", " ")}`);
      return element("tr", {}, element("td", {}, number(l.id)), text(link), text(launchText(layout, l)), text(lineText(layout, layout.steps[step].of[0]) ?? ""),
        element("td", {}, number(l.times)), element("td", {}, l.read ? bytes(l.read) : ""), element("td", {}, l.written ? bytes(l.written) : ""),
        element("td", {}, l.flops ? flops(l.flops) : ""));
    };
    const shown = state.allLaunches ? all : all.slice(0, SHOWN_LAUNCHES);
    const titles = [["launch", ""], ["kernel", "text"], ["computes", "text"], ["line", "text"], ["runs", ""], ["reads", ""], ["writes", ""], ["operations", ""]];
    const head = element("tr", {}, ...titles.map(([t, c]) => element("th", { scope: "col", class: `plain ${c}` }, t)));
    const rest = all.length - shown.length;
    const more = rest > 0 ? [element("button", { type: "button", onclick: () => { state.allLaunches = true; view.launches(); } }, `Show ${number(rest)} more`)] : [];
    const burn = totals.burn ? `, ${number(totals.burn)} of them operations of Burn` : "";
    const about = `${device}: ${count(totals.kernels, "kernel")} a step${burn}, ${count(totals.collectives, "collective")}, `
      + `${bytes(totals.read)} read and ${bytes(totals.written)} written, peak ${bytes(totals.peak_bytes)}`;
    place.replaceChildren(element("div", { class: "filter" }, element("strong", {}, about), ...buttons),
      element("div", { class: "table", tabindex: "0", id: "table-launches" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...shown.map(row)))),
      ...more);
  };

  // ---- The page.

  const detail = element("div", { class: "detail", role: "region", "aria-label": "What is selected" });
  const view = {};

  /** The step that does the same in another layout; where none does, the collective in sight that moves most. */
  const alike = (layout, step) => {
    const key = (l, s) => `${s.op} ${s.phase} ${s.of.map((o) => l.texts[o.path]).join()}`;
    const wanted = step && key(layout, step);
    const found = state.layout().steps.findIndex((s) => key(state.layout(), s) === wanted);
    if (found >= 0) return list.ordered.find((n) => n.at === found);
    const moved = (n) => { const s = state.layout().steps[n.at]; return s.times * sum(s.collective.bytes); };
    const moving = list.ordered.filter((n) => n.kind === "collective" && isShown(n)).sort((a, b) => moved(b) - moved(a));
    return moving[0] ?? list.ordered.find((n) => n.at !== undefined && !n.children);
  };

  const choose = (at) => {
    const before = state.layout();
    const step = before.steps[state.selected];
    state.at = at;
    state.selected = undefined;
    view.all(before, step);
  };

  const build = () => {
    const top = element("section");
    page.main.append(top);
    const devices = [...new Set(data.layouts.map((l) => l.devices))];
    const what = `The ${data.program === "train" ? "training step" : `${data.program} program`} of ${data.model}`;
    const each = `each of ${devices.map(number).join(" or ")} device${devices.at(-1) === 1 ? "" : "s"}`;
    top.append(element("p", { class: "about" }, `${what} as ${each} runs it. Numbers are of the device with the largest shards, for one step.`));
    switcher(top);
    const sums = element("div");
    top.append(sums);
    const differs = differing();
    const steps = section("Steps",
      "In the order in which they run. Select one to see its values on the mesh; arrow keys go through the list, right and left unfold and fold.");
    const listed = element("div", { class: "listed" });
    steps.append(element("div", { class: "columns" }, listed, detail));
    const says = () => `${document.title}, ${state.layout().name} on ${meshText(state.layout())}`;
    const memory = section("Memory", "What a device holds during each step of the plan; of a loop, during one iteration.");
    const curve = page.chart(memory, { id: "memory", title: "Memory by kind", height: 320, option: planCharts.memory(state, data.kinds), says });
    const held = element("div");
    memory.append(held);
    const staged = data.layouts.some((l) => l.pipeline) && section("Pipeline", undefined);
    const stages = {};
    if (staged) {
      stages.about = element("p", { class: "about", role: "status" });
      stages.table = element("div");
      staged.append(stages.about);
      stages.chart = page.chart(staged, {
        id: "pipeline", title: "Passes of each stage", height: 90 + 26 * Math.max(...data.layouts.map((l) => Math.min(l.pipeline?.stages.length ?? 0, 24))),
        option: planPipeline.chart(state), says,
      });
      staged.append(stages.table);
    }
    const launched = data.layouts.every((l) => l.launches)
      && section("Launches", "What one device launches for these steps, as `explain --emit device` prints it. Bytes and operations are of one run.");
    const launches = element("div");
    if (launched) launched.append(launches);
    const times = section("Timeline", undefined);
    const about = element("p", { class: "about", role: "status" });
    // A machine is that of all layouts.
    const lanes = [];
    if (data.layouts.every((l) => l.estimate)) {
      times.append(about);
      lanes.push(page.chart(times, {
        id: "timeline", title: "Compute and collectives, estimated", height: 230, option: planCharts.timeline(state), says: () => `${says()}\n${ranText()}`,
      }));
    } else {
      times.append(howToEstimate());
    }
    clicks(curve, stepOfMemory);
    lanes.forEach((chart) => clicks(chart, stepOfTime));
    view.marks = () => { for (const chart of [curve, ...lanes]) chart.instance.setOption(planCharts.marksOf(chart.option())); };
    view.held = () => heldTable(held);
    view.launches = () => { if (launched) launchTable(launches); };
    view.all = (before, step) => {
      summary(sums);
      differs?.();
      stepList(listed);
      if (lanes.length) about.textContent = ranText();
      // They are drawn when they are made.
      if (before) [curve, ...lanes].forEach((chart) => chart.draw());
      const first = alike(before ?? state.layout(), step);
      if (first) selectStep(first.at);
      view.held();
      view.launches();
      if (staged) {
        const p = state.layout().pipeline;
        stages.about.textContent = p ? planPipeline.words(p) : "This layout has no pipeline.";
        stages.table.replaceChildren(...(p ? [planPipeline.table(p, flops)] : []));
        if (before) stages.chart.draw();
      }
    };
    view.all();
  };

  build();
})();
