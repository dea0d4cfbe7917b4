// Other processes of this user that serve a page.
import { age, badge, code, count, h, lead, note, table } from "./dom.js";
import { load, offline } from "./data.js";

export async function processesPage(root) {
  root.append(h("h1", {}, "Processes"),
    lead("Processes of this user that called lz.serve() or run `lz serve`."));
  if (offline) {
    root.append(note("A report does not list running processes."));
    return;
  }
  const { processes } = await load("processes");
  const now = Date.now() / 1000;
  root.append(table("Processes", [
    { label: "Process", cell: (row) => [h("a", { href: row.url }, String(row.pid)), row.own ? [" ", badge("this page", "accent")] : []].flat(), sort: (row) => row.pid, tight: true },
    { label: "Program", cell: (row) => code(row.program), sort: (row) => row.program },
    { label: "LayerZero", cell: (row) => row.overview?.version, tight: true },
    { label: "Serving for", cell: (row) => age(now - row.since), sort: (row) => -row.since, number: true },
    { label: "Calls", cell: (row) => (row.metrics ? count(row.metrics.metrics.selections) : null), number: true },
    { label: "Health", cell: (row) => (row.metrics ? badge(row.metrics.level, row.metrics.level === "Full" ? "good" : "bad") : badge("no answer", "warn")), tight: true },
  ], processes));
}
