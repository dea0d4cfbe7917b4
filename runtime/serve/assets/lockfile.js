// Lockfiles: which decisions differ between two files, or between a file and this process.
import { code, count, field, h, lead, note, table } from "./dom.js";
import { load, offline, send } from "./data.js";

export async function lockfilePage(root) {
  root.append(h("h1", {}, "Lockfile"),
    lead("Compares the decisions of two lockfiles, which `lz freeze` and lz.freeze() write. Without a second file, the decisions that this process recorded are compared."));
  const answer = h("div", { "aria-live": "polite" });
  const configured = await load("lockfile");
  if (configured.error) answer.append(note(configured.error, "bad"));
  if (configured.compared) answer.append(comparison(configured));
  else if (offline) answer.append(note("The report was written without a lockfile: lz report --html FILE --lockfile OLD NEW."));
  if (!offline) root.append(compareForm(answer));
  root.append(answer);
}

function compareForm(answer) {
  const expected = h("input", { id: "expected", type: "file", required: true });
  const found = h("input", { id: "found", type: "file" });
  const read = async (input) => {
    const file = input.files[0];
    return file ? { name: file.name, text: await file.text() } : null;
  };
  return h("form", { class: "panel", onsubmit: async (event) => {
    event.preventDefault();
    try {
      answer.replaceChildren(comparison(await send("lockfile/diff", { expected: await read(expected), found: await read(found) })));
    } catch (error) {
      answer.replaceChildren(note(error.message, "bad"));
    }
  } }, h("div", { class: "fields" }, field("Expected", expected), field("Compared with (default: this process)", found),
    h("button", { class: "button primary", type: "submit" }, "Compare")));
}

function comparison(data) {
  const facts = ["name", "layerzero", "hardware", "decisions", "digest"];
  const text = (side, fact) => (fact === "digest" ? code(side[fact].slice(0, 16)) : fact === "decisions" ? count(side[fact]) : side[fact] || "–");
  const same = data.expected.digest === data.found.digest;
  return h("div", {},
    table("Files", [
      { label: "", cell: (fact) => fact, tight: true },
      { label: "Expected", cell: (fact) => text(data.expected, fact) },
      { label: "Found", cell: (fact) => text(data.found, fact) },
    ], facts, { counted: false }),
    data.differences.length ? table("Differences", [
      { label: "What", cell: (row) => row.what, sort: (row) => row.what },
      { label: "Expected", cell: (row) => (row.expected === null ? null : h("span", { class: "was" }, code(row.expected))) },
      { label: "Found", cell: (row) => (row.found === null ? null : h("span", { class: "is" }, code(row.found))) },
    ], data.differences, { class: "diff" }) : note(same ? "Both have the same decisions." : "There are no differences."));
}
