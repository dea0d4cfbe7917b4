// Plots as SVG, drawn by hand: lines over linear or logarithmic axes.
import { h } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const COLORS = 8;

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function seriesColor(index) {
  return `var(--series-${index % COLORS})`;
}

// A chart that fits its width. `chart` is {label, series: [{name, color, points: [[x, y, text]], area?}], x, y, height}; an axis is
// {log?, format, label?, low?, high?}.
export function lineChart(chart) {
  const box = h("div", { class: "chart" });
  const draw = () => { if (box.clientWidth > 0) box.replaceChildren(drawn(chart, box.clientWidth)); };
  new ResizeObserver(draw).observe(box);
  // For charts whose data changes.
  box.redraw = draw;
  return box;
}

export function legend(series) {
  return h("ul", { class: "legend" }, series.map(({ name, color }) => {
    const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = color;
    return h("li", {}, swatch, name);
  }));
}

function drawn(chart, width) {
  const height = chart.height ?? 280;
  const edge = { left: 66, right: 18, top: 12, bottom: chart.x.label ? 42 : 24 };
  const points = chart.series.flatMap((series) => series.points);
  const x = scale(chart.x, points.map((point) => point[0]), edge.left, width - edge.right);
  const y = scale(chart.y, points.map((point) => point[1]), height - edge.bottom, edge.top);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.label });
  for (const tick of y.ticks) {
    const at = y.at(tick);
    root.append(svg("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: at, y2: at }),
      svg("text", { x: edge.left - 8, y: at + 4, "text-anchor": "end" }, chart.y.format(tick)));
  }
  const space = (width - edge.left - edge.right) / 64;
  const step = Math.max(1, Math.ceil(x.ticks.length / Math.max(1, space)));
  x.ticks.forEach((tick, index) => {
    if (index % step) return;
    root.append(svg("text", { x: x.at(tick), y: height - edge.bottom + 18, "text-anchor": "middle" }, chart.x.format(tick)));
  });
  if (chart.x.label) root.append(svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 6, "text-anchor": "middle" }, chart.x.label));
  for (const series of chart.series) {
    const places = series.points.map((point) => [x.at(point[0]), y.at(point[1])]);
    const path = places.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    if (series.area && places.length > 1) {
      const base = height - edge.bottom;
      root.append(svg("path", { class: "area", fill: series.color, d: `${path}L${places.at(-1)[0].toFixed(1)} ${base}L${places[0][0].toFixed(1)} ${base}Z` }));
    }
    root.append(svg("path", { class: "series", stroke: series.color, d: path }));
    if (series.area) continue;
    series.points.forEach((point, index) => root.append(
      svg("circle", { cx: places[index][0], cy: places[index][1], r: 3.5, fill: series.color }, svg("title", {}, point[2] ?? ""))));
  }
  return root;
}

function scale(axis, values, from, to) {
  let low = axis.low ?? Math.min(...values);
  let high = axis.high ?? Math.max(...values);
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = axis.log ? [1, 10] : [0, 1];
  if (axis.log) {
    [low, high] = [Math.max(low, 1e-9), Math.max(high, 1e-9)];
    if (high / low < 1.5) [low, high] = [low / 1.5, high * 1.5];
  } else if (high <= low) high = low + 1;
  const ticks = axis.log ? logTicks(low, high) : linearTicks(low, high);
  if (!axis.log) high = Math.max(high, ticks.at(-1));
  const f = axis.log ? Math.log : (value) => value;
  const at = (value) => from + (f(Math.max(value, axis.log ? 1e-9 : value)) - f(low)) / (f(high) - f(low)) * (to - from);
  return { at, ticks };
}

function linearTicks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick < high + step; tick += step) ticks.push(tick);
  return ticks;
}

function logTicks(low, high) {
  const factors = high / low > 300 ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}
