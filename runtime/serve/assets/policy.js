// Policy: every setting, lock and rule with its source.
import { badge, code, compare, field, h, lead, table } from "./dom.js";
import { load } from "./data.js";

export async function policyPage(root) {
  const { entries } = await load("policy");
  const search = h("input", { id: "search", type: "search", placeholder: "cache", autocomplete: "off" });
  const changed = h("input", { id: "changed", type: "checkbox" });
  const list = h("div");
  const draw = () => list.replaceChildren(table("Settings", [
    { label: "Setting", cell: (row) => code(row.key), sort: (row) => row.key, tight: true },
    { label: "Value", cell: (row) => code(row.value === "" ? "(empty)" : row.value), sort: (row) => row.value },
    { label: "Source", cell: (row) => (row.source === "default" ? badge("default") : badge(row.source, "accent")), sort: (row) => row.source, tight: true },
    { label: "What it says", cell: (row) => row.doc },
  ], entries.filter((row) => row.key.includes(search.value.trim()) && (!changed.checked || row.source !== "default"))
    .sort((a, b) => compare(a.source === "default", b.source === "default")), { limit: entries.length }));
  search.addEventListener("input", draw);
  changed.addEventListener("change", draw);
  draw();
  root.append(h("h1", {}, "Policy"),
    lead("Every setting with the source of its value. Later sources override earlier ones: file, profile, environment, calls."),
    h("div", { class: "fields" }, field("Filter by name", search), h("p", {}, changed, " ", h("label", { for: "changed" }, "Only settings that differ from the defaults"))), list);
}
