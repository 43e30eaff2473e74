"use strict";
// The stages of a pipeline: a table, and the passes of each in time.
const planPipeline = (() => {
  const { element, bytes, number, ink } = page;
  const COLORS = [page.colors[0], page.colors[2], page.colors[4]];
  const NAMES = ["forward", "backward", "gradients of weights"];
  const LETTERS = ["F", "B", "W"];
  const percent = (part) => `${(100 * part).toFixed(1)} %`;

  const words = (p) => {
    const parts = `${number(p.stages.length)} stages over ${p.axis}${p.chunks > 1 ? ` in ${p.chunks} chunks each` : ""}, ${number(p.microbatches)} microbatch${p.microbatches === 1 ? "" : "es"}, ${p.schedule}.`;
    const waits = `A device waits for ${percent(p.bubble)} of the time in which it computes, for ${percent(p.bubble_equal_stages)} if all stages took the same time.`;
    const better = p.balanced ? ` "${p.balanced}" would share the operations better.` : "";
    const rest = p.left_out ? ` ${number(p.left_out)} later passes are not drawn.` : "";
    return `${parts} ${waits}${better}${rest} Times of passes are by their operations.`;
  };

  const table = (p, flops) => {
    const head = ["stage", "layers", "parameters", "optimizer state", "in flight", "peak", "compute", "messages", "bytes sent"];
    const row = (s) => [s.stage, s.layers, bytes(s.parameter_bytes), bytes(s.optimizer_state_bytes), s.in_flight,
      bytes(s.peak_bytes), flops(s.flops), number(s.sends), bytes(s.send_bytes)];
    const cells = (tag, all) => element("tr", {}, ...all.map((text) => element(tag, {}, String(text))));
    return element("div", { class: "table", tabindex: "0" }, element("table", {},
      element("thead", {}, cells("th", head)), element("tbody", {}, ...p.stages.map((s) => cells("td", row(s))))));
  };

  const chart = (state) => () => {
    const p = state.layout().pipeline;
    if (!p) return { series: [] };
    const kinds = [...new Set(p.passes.flat().map((pass) => pass[0]))].sort();
    const series = kinds.map((kind) => ({
      name: NAMES[kind], type: "custom", color: COLORS[kind], encode: { x: [1, 2], y: 0 },
      data: p.passes.flatMap((list, stage) => list.filter((pass) => pass[0] === kind).map((pass) => [stage, pass[3], pass[4], pass[1], pass[2]])),
      renderItem: (params, api) => {
        const [from, to] = [1, 2].map((at) => api.coord([api.value(at), api.value(0)]));
        const height = Math.max(2, api.size([0, 1])[1] - 3);
        const shape = { x: from[0], y: from[1] - height / 2, width: Math.max(1, to[0] - from[0]), height };
        const label = { type: "text", style: { text: `${LETTERS[kind]} ${api.value(3)}`, x: shape.x + shape.width / 2, y: from[1],
          align: "center", verticalAlign: "middle", fill: "#000", font: "10px system-ui, sans-serif" } };
        const box = { type: "rect", shape, style: { fill: COLORS[kind], stroke: ink("paper"), lineWidth: 0.5 } };
        return { type: "group", children: [box, ...(shape.width > 26 && height > 10 ? [label] : [])] };
      },
      tooltip: { formatter: ({ value: [stage, , , micro, chunk] }) =>
        `${NAMES[kind]} pass of microbatch ${micro}<br>stage ${stage}${p.chunks > 1 ? `, chunk ${chunk}` : ""}` },
    }));
    return {
      grid: { left: 86, right: 24, top: 36, bottom: 40 },
      legend: { top: 4, textStyle: { color: ink("ink") } },
      tooltip: { trigger: "item" },
      xAxis: { type: "value", min: 0, axisLabel: { show: false }, name: "time", nameLocation: "middle", nameGap: 14 },
      yAxis: { type: "category", data: p.stages.map((s) => `stage ${s.stage}`), inverse: true, splitLine: { show: false } },
      series,
    };
  };

  return { words, table, chart };
})();
