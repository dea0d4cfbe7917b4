// The pages and their addresses: the part of the URL after #.
import { age, h, note } from "./dom.js";
import { load, offline, startLive } from "./data.js";
import { livePage } from "./live.js";
import { operationPage, operationsPage } from "./operations.js";
import { measurementsPage } from "./measurements.js";
import { healthPage } from "./health.js";
import { policyPage } from "./policy.js";
import { lockfilePage } from "./lockfile.js";
import { processesPage } from "./processes.js";

const PAGES = [
  ["live", "Live", livePage],
  ["operations", "Operations", operationsPage],
  ["measurements", "Measurements", measurementsPage],
  ["health", "Health", healthPage],
  ["policy", "Policy", policyPage],
  ["lockfile", "Lockfile", lockfilePage],
  ...(offline ? [] : [["processes", "Processes", processesPage]]),
];
const STATES_OF_CONNECTION = { live: "live", lost: "disconnected; retrying", report: "report" };

let leave = null;
let shown = 0;

async function show() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const [name, ...rest] = location.hash.slice(2).split("/");
  const argument = decodeURIComponent(rest.join("/"));
  const one = name === "operation" ? ["operations", "Operations", operationPage] : PAGES.find(([page]) => page === name) ?? PAGES[0];
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.hash === `#/${one[0]}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${argument || one[1]} · LayerZero`;
  leave?.();
  leave = null;
  shown += 1;
  const own = shown;
  const root = h("div");
  try {
    const stop = await one[2](root, argument);
    // Another page may have been opened while this one was loading.
    if (own !== shown) { stop?.(); return; }
    leave = stop ?? null;
  } catch (error) {
    if (own !== shown) return;
    root.append(note(error.message, "bad"));
  }
  document.getElementById("content").replaceChildren(root);
  window.scrollTo(0, 0);
}

async function start() {
  document.getElementById("pages").append(...PAGES.map(([page, title]) => h("a", { href: `#/${page}` }, title)));
  const connection = document.getElementById("connection");
  await startLive((state) => {
    connection.dataset.state = state;
    connection.textContent = STATES_OF_CONNECTION[state];
  });
  window.addEventListener("hashchange", show);
  await show();
  const overview = await load("overview");
  const written = offline ? `Written ${new Date(overview.time * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC, ${age(Date.now() / 1000 - overview.time)} ago. ` : "";
  document.getElementById("process").textContent =
    `${written}LayerZero ${overview.version} · process ${overview.pid} (${overview.program}) · ${overview.kernels} kernels of ${overview.operations} operations · ${overview.devices.map((device) => device.name).join(", ")}`;
}

start();
