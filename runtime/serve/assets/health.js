// Health: readiness, the degradation level, circuit breakers, backends.
import { badge, code, count, h, lead, note, sizes, table, tile } from "./dom.js";
import { load } from "./data.js";

const STATES = { closed: "good", half_open: "warn", open: "bad" };

export async function healthPage(root) {
  const [health, overview] = await Promise.all([load("health"), load("overview")]);
  const { counters, readiness } = health;
  root.append(h("h1", {}, "Health"),
    lead("A circuit opens when a kernel fails repeatedly; while it is open, other kernels run its calls. `lz health reset` resets circuits."),
    h("ul", { class: "tiles" },
      tile("Readiness", readiness.ready ? "ready" : "not ready", "as /readyz reports it", readiness.ready ? "good" : "bad"),
      tile("Level", health.level, `health score ${health.score.toFixed(0)} of 100`, health.level === "Full" ? "good" : "bad"),
      tile("Failed runs", count(counters.failures), "caused by kernels", counters.failures ? "warn" : null),
      tile("Circuits opened", count(counters.openings), `${count(counters.closings)} closed again`, counters.openings ? "warn" : null),
      tile("Refused runs", count(counters.refusals), "a circuit was open"),
      tile("Other failures", count(counters.caller_failures + counters.capacity_failures + counters.environment_failures), "not caused by kernels")),
    table("Checks", [
      { label: "Check", cell: (row) => row.name, tight: true },
      { label: "State", cell: (row) => badge(row.ok ? "ok" : "problem", row.ok ? "good" : "bad"), tight: true },
      { label: "Detail", cell: (row) => row.detail },
    ], readiness.checks),
    health.circuits.length ? circuitTable(health.circuits) : note("No circuit has recorded a failure."),
    table("Backends", [
      { label: "Backend", cell: (row) => row.name, sort: (row) => row.name, tight: true },
      { label: "Version", cell: (row) => row.version, tight: true },
      { label: "Kernels", cell: (row) => count(row.kernels), sort: (row) => row.kernels, number: true },
      { label: "State", cell: (row) => (row.disabled ? badge("disabled", "bad") : badge("available", "good")), tight: true },
      { label: "Reason", cell: (row) => row.disabled },
    ], overview.backends),
    table("Devices", [
      { label: "Device", cell: (row) => row.name },
      { label: "Index", cell: (row) => row.place, tight: true },
      { label: "Signature", cell: (row) => code(row.signature), tight: true },
    ], overview.devices));
}

function circuitTable(circuits) {
  const where = (row) => (row.bucket ? [...row.bucket.axes.map((axis) => `${axis.name} ${sizes(axis)}`), row.bucket.variant].filter(Boolean).join(", ") : null);
  return table("Circuits", [
    { label: "Scope", cell: (row) => row.scope, sort: (row) => row.scope, tight: true },
    { label: "Name", cell: (row) => code(row.name), sort: (row) => row.name, tight: true },
    { label: "State", cell: (row) => badge(row.state.replace("_", " "), STATES[row.state]), sort: (row) => row.state, tight: true },
    { label: "Failures", cell: (row) => count(row.failures), sort: (row) => row.failures, number: true },
    { label: "Next probe", cell: (row) => (row.retry_seconds === null ? null : `${row.retry_seconds.toFixed(0)} s`), number: true },
    { label: "Sizes", cell: where },
    { label: "Last error", cell: (row) => row.last_error },
    { label: "Recorded", cell: (row) => (row.stored_only ? "by another process" : "here"), tight: true },
  ], circuits);
}
