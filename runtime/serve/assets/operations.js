// Operations, and one operation: its kernels, measured times by size, and why a kernel is selected for a call.
import { age, badge, bytes, choice, code, compare, count, duration, field, h, lead, note, prose, significant, sizes, table } from "./dom.js";
import { load, offline, send } from "./data.js";

export async function operationsPage(root) {
  const { operations } = await load("operations");
  const search = h("input", { id: "search", type: "search", placeholder: "attention", autocomplete: "off" });
  const list = h("div");
  const draw = () => list.replaceChildren(table("Operations", [
    { label: "Operation", cell: (row) => h("a", { href: `#/operation/${row.name}` }, row.name), sort: (row) => row.name, tight: true },
    { label: "What it computes", cell: (row) => row.summary },
    { label: "Kernels", cell: (row) => count(row.kernels), sort: (row) => row.kernels, number: true },
    { label: "Measurements", cell: (row) => (row.measurements ? count(row.measurements) : null), sort: (row) => row.measurements, number: true },
  ], operations.filter((row) => row.name.includes(search.value.trim())), { limit: operations.length }));
  search.addEventListener("input", draw);
  draw();
  root.append(h("h1", {}, "Operations"),
    lead("An operation shows its candidate kernels, how fast each was measured at each size, and why one is selected for a call."),
    h("div", { class: "fields" }, field("Filter by name", search)), list);
}

export async function operationPage(root, name) {
  const operation = await load(`operation/${encodeURIComponent(name)}`);
  const aliases = operation.aliases.length ? ` Also called ${operation.aliases.join(", ")}.` : "";
  root.append(h("h1", {}, operation.name), lead(operation.summary + aliases),
    h("h2", {}, "Measured time by size"), heatMap(operation),
    h("h2", {}, "Why a kernel is selected"), await explainForm(operation),
    kernelTable(operation.kernels));
}

function kernelTable(kernels) {
  return table("Kernels", [
    { label: "Kernel", cell: (row) => [code(row.id), row.reference ? [" ", badge("reference")] : []].flat(), sort: (row) => row.id, tight: true },
    { label: "Backend", cell: (row) => `${row.backend} ${row.version}`, sort: (row) => row.backend, tight: true },
    { label: "Platform", cell: (row) => row.platform, sort: (row) => row.platform, tight: true },
    { label: "Priority", cell: (row) => String(row.priority), sort: (row) => row.priority, number: true },
    { label: "Dtypes", cell: (row) => row.dtypes.join("; ") || "all" },
  ], kernels);
}

// The conditions of a measurement that are not sizes.
export function conditions(row) {
  return [row.dtypes, row.variant].filter(Boolean).join(" · ") || "all calls";
}

// Candidates × size buckets. Each column is colored by the ratio to its fastest kernel.
function heatMap({ kernels, measurements: { rows, left_out } }) {
  const valid = rows.filter((row) => row.valid);
  if (!valid.length) return note(offline ? "No measurements." : "No measurements. `lz tune` or lz.tune() measures every kernel that can run a call.");
  const groups = new Map();
  for (const row of valid) {
    const key = JSON.stringify([conditions(row), row.device]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  const several = new Set(valid.map((row) => row.device)).size > 1;
  const named = (key) => { const [text, device] = JSON.parse(key); return several ? `${text} · ${device.slice(0, 12)}` : text; };
  const keys = [...groups.keys()].sort((a, b) => groups.get(b).length - groups.get(a).length);
  const versions = new Map(kernels.map((kernel) => [kernel.id, kernel.version]));
  const box = h("div");
  const draw = (key) => box.replaceChildren(heatTable(groups.get(key), versions));
  draw(keys[0]);
  const options = keys.map((key) => [key, named(key)]);
  return h("div", {},
    h("div", { class: "fields" }, field("Conditions", choice("conditions", options, keys[0], draw))), box,
    left_out ? note(`${count(left_out)} further measurements are not shown.`) : null);
}

function heatTable(rows, versions) {
  const columns = new Map();
  const kernels = new Map();
  for (const row of rows) {
    const key = JSON.stringify(row.axes);
    if (!columns.has(key)) columns.set(key, row.axes);
    const cells = kernels.get(row.kernel) ?? new Map();
    // Of several versions the registered one counts, and of that the latest measurement.
    const rank = (one) => [one.kernel_version === versions.get(one.kernel) ? 1 : 0, one.measured_at];
    const known = cells.get(key);
    if (!known || rank(known)[0] < rank(row)[0] || (rank(known)[0] === rank(row)[0] && rank(known)[1] < rank(row)[1])) cells.set(key, row);
    kernels.set(row.kernel, cells);
  }
  const order = [...columns].sort(([, a], [, b]) => {
    for (let index = 0; index < a.length; index += 1) {
      if (a[index].low !== b[index].low) return a[index].low - b[index].low;
    }
    return 0;
  });
  const varying = [...order[0][1].keys()].filter((index) => new Set(order.map(([, axes]) => sizes(axes[index]))).size > 1);
  const fixed = order[0][1].filter((_, index) => !varying.includes(index)).map((axis) => `${axis.name} ${sizes(axis)}`);
  const best = new Map(order.map(([key]) => [key, Math.min(...[...kernels.values()].map((cells) => cells.get(key)?.median_ns ?? Infinity))]));
  const wins = (cells) => order.filter(([key]) => cells.get(key)?.median_ns === best.get(key)).length;
  const names = [...kernels.keys()].sort((a, b) => wins(kernels.get(b)) - wins(kernels.get(a)) || compare(a, b));
  const head = h("tr", {}, h("th", { scope: "col" }, "Kernel"), order.map(([, axes]) =>
    h("th", { scope: "col" }, (varying.length ? varying : [...axes.keys()]).map((index) =>
      h("span", { class: "sizes" }, `${axes[index].name} ${sizes(axes[index])}`)))));
  const body = names.map((name) => h("tr", {}, h("th", { scope: "row" }, code(name)), order.map(([key]) => heatCell(kernels.get(name).get(key), best.get(key)))));
  const caption = ["Median time", fixed.length && varying.length ? ` for ${fixed.join(", ")}` : "", ". Green is the fastest of its column, orange four times slower or more."].join("");
  return h("div", { class: "scroll" }, h("table", { class: "heat" }, h("caption", {}, h("span", { class: "muted" }, caption)), h("thead", {}, head), h("tbody", {}, body)));
}

function heatCell(row, best) {
  if (!row) return h("td", { class: "none" }, "·");
  const ratio = row.median_ns / best;
  const cell = h("td", { class: ratio === 1 ? "cell best" : "cell" }, duration(row.median_ns));
  cell.title = `${significant(ratio)} × the fastest; 95 %: ${duration(row.p95_ns)}; ${count(row.samples)} samples; version ${row.kernel_version}`;
  const heat = Math.min(1, Math.log(ratio) / Math.log(4));
  const [color, strength] = heat < 0.5 ? ["--fast", 46 - 72 * heat] : ["--slow", 10 + 72 * (heat - 0.5)];
  cell.style.backgroundColor = `color-mix(in srgb, var(${color}) ${strength.toFixed(0)}%, transparent)`;
  return cell;
}

async function explainForm(operation) {
  const answer = h("div", { "aria-live": "polite" });
  if (offline) {
    if (!operation.explanation) return note("This operation has no example call.");
    answer.append(h("p", { class: "muted" }, "For ", code(operation.examples[0].call)), explanation(operation.explanation));
    return answer;
  }
  const { presets } = await load("overview");
  const call = h("input", { id: "call", class: "mono", spellcheck: "false", autocomplete: "off", value: operation.examples[0]?.call ?? "" });
  const device = choice("device", [["", "this machine"], ...presets.map((name) => [name, `${name} (simulated)`])], "", () => form.requestSubmit());
  const examples = choice("example", operation.examples.map((one) => [one.call, one.name]), call.value, (value) => { call.value = value; form.requestSubmit(); });
  const form = h("form", { class: "fields", onsubmit: async (event) => {
    event.preventDefault();
    try {
      answer.replaceChildren(explanation(await send("explain", { operation: operation.name, call: call.value, device: device.value })));
    } catch (error) {
      answer.replaceChildren(note(error.message, "bad"));
    }
  } }, field("Call: tensors as x=f32[4,64], params as eps=1e-5", call, true), field("Device", device),
  operation.examples.length ? field("Workload", examples) : null,
  h("button", { class: "button primary", type: "submit" }, "Explain"));
  if (call.value) setTimeout(() => form.requestSubmit());
  return h("div", { class: "panel" }, form, answer);
}

function explanation(data) {
  const device = data.device ? `${data.device.name} (${data.device.place}${data.device.imagined ? ", simulated" : ""})` : "an unknown device";
  const chosen = data.plan ? h("p", { class: "chosen" }, code(data.plan.kernel)) : h("p", { class: "chosen" }, "No kernel can run this call");
  const fallbacks = data.plan?.fallbacks?.length ? `; fallbacks: ${data.plan.fallbacks.join(", ")}` : "";
  const facts = h("p", { class: "muted" }, data.plan ? `selected on ${device}, score ${data.plan.score.toFixed(1)}${fallbacks}` : `on ${device}`);
  const policy = data.policy.length ? table("Policy", [
    { label: "Rule", cell: (row) => row.what },
    { label: "Source", cell: (row) => code(row.source), tight: true },
    { label: "Points", cell: (row) => String(row.points), number: true },
  ], data.policy) : null;
  const dispatch = data.table ? note(`Dispatch table ${data.table.source}: ${data.table.what}`) : null;
  const measured = (row) => (row.evidence ? `${duration(row.evidence.median_ns)}, ${age(row.evidence.age_seconds)} ago` : null);
  return h("div", {}, chosen, facts, dispatch, policy, table("Candidates", [
    { label: "Kernel", cell: (row) => [code(row.kernel), row.chosen ? [" ", badge("selected", "accent")] : []].flat(), tight: true },
    { label: "Score", cell: (row) => (row.reasons.length && !row.chosen ? null : row.total.toFixed(1)), number: true },
    { label: "Measured", cell: measured, number: true },
    { label: "Workspace", cell: (row) => bytes(row.workspace_bytes), number: true },
    { label: "Why not, and effects of the policy", cell: why },
  ], data.candidates, { mark: (row) => (row.chosen ? "chosen" : row.reasons.length ? "out" : null) }));
}

function why(row) {
  const lines = [
    ...row.reasons.map((reason) => h("li", {}, badge(reason.code, row.chosen ? "warn" : null), " ", reason.sentence,
      reason.help ? h("span", { class: "help" }, prose(reason.help)) : null)),
    ...row.policy.map((line) => h("li", {}, `${line.what} (${line.source}): ${line.points > 0 ? "+" : ""}${line.points}`)),
    row.runs_in ? h("li", {}, `runs in ${row.runs_in}`) : null,
    row.last_failure ? h("li", {}, `last failure: ${row.last_failure}`) : null,
  ].filter(Boolean);
  return lines.length ? h("ul", { class: "reasons" }, lines) : null;
}
