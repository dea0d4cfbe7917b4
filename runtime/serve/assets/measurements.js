// Measurements: time by size and kernel, and by version.
import { age, choice, code, compare, count, duration, field, h, lead, note, sizes, table } from "./dom.js";
import { load } from "./data.js";
import { legend, lineChart, seriesColor } from "./plot.js";
import { conditions } from "./operations.js";

const VERSIONS = [
  ["", "kernel"],
  ["kernel_version", "kernel and its version"],
  ["layerzero", "kernel and LayerZero version"],
  ["torch", "kernel and torch version"],
  ["driver", "kernel and driver"],
];

export async function measurementsPage(root, name) {
  const [{ operations }, overview] = await Promise.all([load("operations"), load("overview")]);
  const measured = operations.filter((one) => one.measurements > 0);
  const database = overview.perfdb;
  root.append(h("h1", {}, "Measurements"), lead(
    database ? `${count(database.measurements)} measurements in ${database.path}${database.why ? `: ${database.why}` : ""}` : "This process has no performance database."));
  if (!measured.length) {
    root.append(note("No measurements. `lz tune OPERATION …` measures every kernel that can run a call."));
    return;
  }
  const operation = measured.find((one) => one.name === name)?.name ?? measured.reduce((a, b) => (b.measurements > a.measurements ? b : a)).name;
  const { measurements } = await load(`operation/${encodeURIComponent(operation)}`);
  const pick = choice("operation", measured.map((one) => [one.name, `${one.name} (${one.measurements})`]), operation,
    (value) => { location.hash = `#/measurements/${value}`; });
  root.append(h("div", { class: "fields" }, field("Operation", pick)), timePlot(measurements.rows), measurementTable(measurements));
}

// The axis with the largest number of different sizes.
function mainAxis(rows) {
  const seen = new Map();
  for (const row of rows) {
    for (const axis of row.axes) {
      if (!seen.has(axis.name)) seen.set(axis.name, new Set());
      seen.get(axis.name).add(axis.low);
    }
  }
  return [...seen].sort(([, a], [, b]) => b.size - a.size).map(([name]) => name);
}

// Where the sizes of an axis are plotted: at the largest one, or beyond the smallest one if there is no largest.
function position(axis) {
  return Math.max(1, axis.high ?? 2 * axis.low);
}

function timePlot(rows) {
  const axes = mainAxis(rows);
  if (!axes.length) return note("The operation is not registered in this process, so the sizes of its measurements are unknown.");
  const state = { axis: axes[0], by: "", group: null };
  const panel = h("div", { class: "panel" });
  const draw = () => {
    const rest = (row) => JSON.stringify([conditions(row), row.axes.filter((axis) => axis.name !== state.axis).map((axis) => `${axis.name} ${sizes(axis)}`), row.device]);
    const groups = new Map();
    for (const row of rows) groups.set(rest(row), (groups.get(rest(row)) ?? 0) + 1);
    const order = [...groups].sort(([, a], [, b]) => b - a).map(([key]) => key);
    if (!groups.has(state.group)) state.group = order[0];
    const several = new Set(rows.map((row) => row.device)).size > 1;
    const named = (key) => { const [text, others, device] = JSON.parse(key); return [text, ...others, several ? device.slice(0, 12) : ""].filter(Boolean).join(" · "); };
    const series = seriesOf(rows.filter((row) => rest(row) === state.group), state);
    const set = (key) => (value) => { state[key] = value; draw(); };
    panel.replaceChildren(
      h("div", { class: "fields" },
        field("Over", choice("axis", axes.map((axis) => [axis, axis]), state.axis, set("axis"))),
        field("One line per", choice("by", VERSIONS, state.by, set("by"))),
        field("Conditions", choice("group", order.map((key) => [key, named(key)]), state.group, set("group")))),
      lineChart({
        label: `Median time by ${state.axis}`,
        height: 340,
        series,
        x: { log: true, format: (value) => count(value), label: state.axis },
        y: { log: true, format: (value) => duration(value) },
      }), legend(series));
  };
  draw();
  return panel;
}

function seriesOf(rows, { axis, by }) {
  const lines = new Map();
  for (const row of rows) {
    const name = by ? `${row.kernel} ${row[by] || "(none)"}` : row.kernel;
    if (!lines.has(name)) lines.set(name, []);
    lines.get(name).push(row);
  }
  return [...lines].sort(([a], [b]) => compare(a, b)).map(([name, all], index) => {
    // Without versions, the latest measurement of each size counts.
    const latest = new Map();
    for (const row of all) {
      const size = position(row.axes.find((one) => one.name === axis));
      if (!latest.has(size) || latest.get(size).measured_at < row.measured_at) latest.set(size, row);
    }
    const points = [...latest].sort(([a], [b]) => a - b).map(([size, row]) =>
      [size, row.median_ns, `${name}, ${axis} ${sizes(row.axes.find((one) => one.name === axis))}: ${duration(row.median_ns)}`]);
    return { name, color: seriesColor(index), points };
  });
}

function measurementTable({ rows, left_out }) {
  const now = Date.now() / 1000;
  const text = (row) => row.axes.map((axis) => `${axis.name} ${sizes(axis)}`).join(", ");
  return h("div", {}, table("Measurements", [
    { label: "Kernel", cell: (row) => code(row.kernel), sort: (row) => row.kernel, tight: true },
    { label: "Version", cell: (row) => row.kernel_version, sort: (row) => row.kernel_version, tight: true },
    { label: "Conditions", cell: conditions, sort: conditions },
    { label: "Sizes", cell: text, sort: text },
    { label: "Median", cell: (row) => duration(row.median_ns), sort: (row) => row.median_ns, number: true },
    { label: "95 %", cell: (row) => duration(row.p95_ns), sort: (row) => row.p95_ns, number: true },
    { label: "Samples", cell: (row) => count(row.samples), sort: (row) => row.samples, number: true },
    { label: "Age", cell: (row) => age(now - row.measured_at), sort: (row) => -row.measured_at, number: true },
    { label: "Used", cell: (row) => (row.valid ? "yes" : "no: outdated"), sort: (row) => String(row.valid), tight: true },
  ], rows, { mark: (row) => (row.valid ? null : "out") }),
  left_out ? note(`${count(left_out)} further measurements are not shown.`) : null);
}
