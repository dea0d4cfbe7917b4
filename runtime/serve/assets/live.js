// Live decisions: rate of calls, kernels and their shares, caches, latencies and fallbacks.
import { badge, code, compare, count, duration, h, lead, note, rate, share, table, tile } from "./dom.js";
import { offline, onSample, samples } from "./data.js";
import { lineChart, seriesColor } from "./plot.js";

// Rates are averaged over this many samples.
const WINDOW = 5;

export function livePage(root) {
  const tiles = h("ul", { class: "tiles" });
  const chart = h("div", { class: "panel" });
  const kernels = h("div");
  const rest = h("div", { class: "columns" });
  root.append(h("h1", {}, "Live decisions"),
    lead(offline
      ? "Totals since the process started, at the moment this report was written."
      : "Calls of this process, once per second. While this page is open, one in 64 calls is timed."),
    tiles, offline ? "" : chart, kernels, rest);
  const draw = () => {
    const now = samples.at(-1);
    if (!now) return;
    const before = samples.at(-1 - WINDOW) ?? samples[0];
    tiles.replaceChildren(...liveTiles(now, before));
    kernels.replaceChildren(kernelShares(now, before));
    rest.replaceChildren(latencies(now), fallbacks(now));
  };
  const plot = offline ? null : rateChart();
  if (plot) chart.append(h("h2", {}, "Calls per second"), plot.box);
  draw();
  return onSample(() => { draw(); plot?.draw(); });
}

function perSecond(now, before, value) {
  const seconds = now.time - before.time;
  return seconds > 0 ? Math.max(0, (value(now) - value(before)) / seconds) : 0;
}

function liveTiles(now, before) {
  const { metrics } = now;
  const change = (value) => perSecond(now, before, (sample) => value(sample.metrics));
  const fallbackTotal = metrics.fallbacks.reduce((sum, one) => sum + one.count, 0);
  const hits = metrics.selections ? metrics.cache_hits / metrics.selections : null;
  const tiles = [
    offline ? tile("Calls", count(metrics.selections), "since the start")
      : tile("Calls", rate(change((one) => one.selections)), `${count(metrics.selections)} since the start`),
    tile("Cache hits", hits === null ? "–" : hits > 0.9999 ? "> 99.99 %" : `${(100 * hits).toFixed(hits > 0.99 ? 2 : 1)} %`, `${count(metrics.cache_misses)} new decisions`),
    tile("Fallbacks", count(fallbackTotal), `${count(metrics.failures)} failed runs`, fallbackTotal ? "warn" : null),
    tile("Refused calls", count(metrics.refusals), "no kernel could run them", metrics.refusals ? "warn" : null),
    tile("Circuits open", String(now.circuits_open), `level ${now.level}`, now.circuits_open || now.level !== "Full" ? "bad" : "good"),
    tile("Cached decisions", count(metrics.cache_size), `generation ${now.generation}`),
  ];
  return tiles;
}

function rateChart() {
  const chart = {
    label: "Calls per second over the last three minutes",
    height: 200,
    series: [{ name: "calls", color: seriesColor(0), points: [], area: true }],
    x: { format: (seconds) => (seconds === 0 ? "now" : `${Math.round(seconds)} s`), low: -30, high: 0 },
    y: { format: (value) => count(value), low: 0 },
  };
  const box = lineChart(chart);
  const draw = () => {
    const last = samples.at(-1);
    const points = samples.slice(1).map((sample, index) =>
      [sample.time - last.time, perSecond(sample, samples[index], (one) => one.metrics.selections)]);
    chart.series[0].points = points;
    chart.x.low = Math.min(-30, points[0]?.[0] ?? 0);
    box.redraw();
  };
  draw();
  return { box, draw };
}

// The engine counts calls by kernel; engines without these counters show totals only.
function kernelShares(now, before) {
  const { calls } = now.metrics;
  if (!calls) return h("div");
  const earlier = new Map((before.metrics.calls ?? []).map((one) => [`${one.operation} ${one.kernel}`, one.count]));
  const seconds = Math.max(now.time - before.time, 1e-9);
  const operations = new Map();
  for (const one of calls) operations.set(one.operation, (operations.get(one.operation) ?? 0) + one.count);
  const rows = calls.map((one) => ({
    ...one,
    rate: (one.count - (earlier.get(`${one.operation} ${one.kernel}`) ?? 0)) / seconds,
    part: one.count / (operations.get(one.operation) || 1),
  })).sort((a, b) => compare(b.count, a.count));
  if (!rows.length) return note("No calls yet.");
  return table("Kernels", [
    { label: "Operation", cell: (row) => h("a", { href: `#/operation/${row.operation}` }, row.operation), sort: (row) => row.operation, tight: true },
    { label: "Kernel", cell: (row) => code(row.kernel), sort: (row) => row.kernel, tight: true },
    { label: "Backend", cell: (row) => row.backend, sort: (row) => row.backend, tight: true },
    { label: "Calls", cell: (row) => count(row.count), sort: (row) => row.count, number: true },
    offline ? { label: "", cell: () => "" } : { label: "Rate", cell: (row) => rate(row.rate), sort: (row) => row.rate, number: true },
    { label: "Share of the operation", cell: (row) => share(row.part), sort: (row) => row.part },
  ], rows);
}

function latencies(now) {
  const { metrics } = now;
  const rows = [
    ["Selection", metrics.selection_latency],
    ["Kernel run", metrics.execution_latency],
    ["Worker round trip", metrics.ipc_latency],
  ].filter(([, histogram]) => histogram.count > 0);
  if (!rows.length) return note("No call has been timed yet.");
  return table("Latencies of sampled calls", [
    { label: "What", cell: ([name]) => name },
    { label: "Median", cell: ([, histogram]) => `≤ ${duration(quantile(histogram, now.bounds_ns, 0.5))}`, number: true },
    { label: "95 %", cell: ([, histogram]) => `≤ ${duration(quantile(histogram, now.bounds_ns, 0.95))}`, number: true },
    { label: "Mean", cell: ([, histogram]) => duration(histogram.sum_ns / histogram.count), number: true },
    { label: "Samples", cell: ([, histogram]) => count(histogram.count), number: true },
  ], rows);
}

// The upper bound of the histogram bucket that contains a quantile.
function quantile(histogram, bounds, part) {
  let below = 0;
  for (let index = 0; index < histogram.cells.length; index += 1) {
    below += histogram.cells[index];
    if (below >= part * histogram.count) return bounds[index] ?? bounds.at(-1);
  }
  return bounds.at(-1);
}

function fallbacks(now) {
  const rows = now.metrics.fallbacks;
  if (!rows.length) return note("No kernel has failed: there were no fallbacks.");
  return table("Fallbacks", [
    { label: "Operation", cell: (row) => row.operation, tight: true },
    { label: "Kernel that failed", cell: (row) => code(row.kernel), tight: true },
    { label: "Calls", cell: (row) => badge(count(row.count), "warn"), number: true },
  ], rows);
}
